#include "client/c/job_name.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace epd::client {
namespace {

// Of several variables that say the same the first that is set.
std::string First(const Variables& variables, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = variables(name); !value.empty()) return value;
  }
  return "";
}

void Add(const char* kind, const std::string& word, std::string* job) {
  if (word.empty()) return;
  if (!job->empty()) *job += '-';
  *job += kind;
  *job += word;
}

// An Open MPI or Hydra mpirun: it starts the processes of its own host itself and those of other hosts by srun, in a step of
// theirs. So its processes are of one launch, but not of one step.
bool StartedByMpirun(const Variables& variables) {
  return !First(variables,
                {"OMPI_MCA_ess_base_jobid", "PRTE_LAUNCHED", "I_MPI_HYDRA_UUID", "MPI_LOCALRANKID"})
              .empty();
}

std::string SlurmJob(const Variables& variables) {
  // The components of a heterogeneous job have ids of their own.
  std::string job =
      First(variables, {"SLURM_HET_JOB_ID", "SLURM_PACK_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID"});
  const std::string step = First(variables, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (!job.empty() && !step.empty() && !StartedByMpirun(variables)) job += "." + step;
  return job;
}

std::string LsfJob(const Variables& variables) {
  std::string job = variables("LSB_JOBID");
  const std::string index = variables("LSB_JOBINDEX");  // The elements of an array share the id.
  if (!job.empty() && !index.empty() && index != "0") job += "." + index;
  return job;
}

std::string TorchrunLaunch(const Variables& variables) {
  const std::string id = variables("TORCHELASTIC_RUN_ID");  // "none" with a static rendezvous.
  if (id.empty()) return "";
  return id + "@" + variables("MASTER_ADDR") + ":" + variables("MASTER_PORT");
}

std::string Words(const Variables& variables) {
  std::string job;
  Add("slurm-", SlurmJob(variables), &job);
  Add("pbs-", variables("PBS_JOBID"), &job);
  Add("lsf-", LsfJob(variables), &job);
  Add("flux-", variables("FLUX_JOB_ID"), &job);  // Each `flux run` is a job.
  Add("cobalt-", variables("COBALT_JOBID"), &job);
  Add("pals-", variables("PALS_APID"), &job);
  Add("alps-", variables("ALPS_APP_ID"), &job);
  // Open MPI's first word is random; the second is made of a host's name and a pid, by few bits.
  Add("mpi-",
      First(variables, {"OMPI_MCA_orte_precondition_transports", "OMPI_MCA_ess_base_jobid",
                        "I_MPI_HYDRA_UUID"}),
      &job);
  Add("pmix-", variables("PMIX_NAMESPACE"), &job);
  if (!StartedByMpirun(variables)) Add("pmi-", variables("PMI_JOBID"), &job);
  Add("torchrun-", TorchrunLaunch(variables), &job);
  return job;
}

// FNV-1a: the same in every process.
std::string DigestText(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

// As a part of a group's name. Two words that differ stay different.
std::string Fit(const std::string& job) {
  std::string fit = job;
  for (char& c : fit) {
    if (c <= ' ' || c > '~' || c == '/') c = '_';
  }
  if (fit.size() <= kMaxJobBytes) return fit;
  const std::string digest = "-" + DigestText(job);
  return fit.substr(0, kMaxJobBytes - digest.size()) + digest;
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string JobName(const Variables& variables) {
  const std::string given = variables("EPD_JOB");
  return Fit(given.empty() ? Words(variables) : given);
}

std::string JobOfEnvironment() { return JobName(Environment); }

std::string InstanceOfEnvironment() {
  const std::string given = Environment("EPD_INSTANCE");
  return given.empty() ? JobOfEnvironment() : Fit(given);
}

}  // namespace epd::client
