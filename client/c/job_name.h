// Which job this process belongs to, by what users, schedulers and launchers say in its environment.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace epd::client {

// A variable of the environment; "" where it is not set.
using Variables = std::function<std::string(const char* name)>;

inline constexpr size_t kMaxJobBytes = 120;

// EPD_JOB, else every word that is the same in all processes of one launch and in no other launch: the scheduler's job (Slurm,
// PBS, LSF, Flux, Cobalt) and the launch in it (a Slurm step, mpirun's, jsrun's, aprun's or PALS's application, torchrun's
// rendezvous). "" where nobody says anything. Printable ASCII without spaces and slashes, at most kMaxJobBytes: a longer one
// ends in a digest of all of it.
std::string JobName(const Variables& variables);

// ... of this process.
std::string JobOfEnvironment();

// The run of a job that this process belongs to where its program names none: EPD_INSTANCE, else JobOfEnvironment().
std::string InstanceOfEnvironment();

}  // namespace epd::client
