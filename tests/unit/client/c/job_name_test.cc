// Goal: processes of one launch are given one name, and no two launches are given the same.
#include "client/c/job_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace epd::client {
namespace {

using testing::SizeIs;
using Environment = std::map<std::string, std::string>;

std::string NameIn(const Environment& environment) {
  return JobName([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  });
}

TEST(JobNameTest, NobodySaysAnything) { EXPECT_EQ(NameIn({{"PATH", "/bin"}}), ""); }

TEST(JobNameTest, TheUsersWordIsTakenAsItIs) {
  EXPECT_EQ(NameIn({{"EPD_JOB", "train"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "1"}}),
            "train");
  EXPECT_EQ(NameIn({{"EPD_JOB", "a b/c"}}), "a_b_c");
}

TEST(JobNameTest, EveryLaunchOfEveryKindHasItsOwnName) {
  const std::vector<Environment> launches = {
      {{"SLURM_JOB_ID", "77"}},
      {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}},
      {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "1"}},
      {{"SLURM_JOBID", "78"}, {"SLURM_STEPID", "1"}},
      {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"FLUX_JOB_ID", "f1"}},
      {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"FLUX_JOB_ID", "f2"}},
      {{"SLURM_JOB_ID", "77"},
       {"SLURM_STEP_ID", "0"},
       {"TORCHELASTIC_RUN_ID", "none"},
       {"MASTER_ADDR", "h"},
       {"MASTER_PORT", "29500"}},
      {{"SLURM_JOB_ID", "77"},
       {"SLURM_STEP_ID", "0"},
       {"TORCHELASTIC_RUN_ID", "none"},
       {"MASTER_ADDR", "h"},
       {"MASTER_PORT", "29501"}},
      {{"PBS_JOBID", "123[4].server"}},
      {{"PBS_JOBID", "123[5].server"}},
      {{"PBS_JOBID", "123[5].server"}, {"PALS_APID", "a"}},
      {{"PBS_JOBID", "123[5].server"}, {"PALS_APID", "b"}},
      {{"PBS_JOBID", "123[5].server"}, {"PMI_JOBID", "b"}},
      {{"PBS_JOBID", "7"}, {"PMIX_NAMESPACE", "prterun-h-1@1"}, {"PRTE_LAUNCHED", "1"}},
      {{"PBS_JOBID", "7"}, {"PMIX_NAMESPACE", "prterun-h-2@1"}, {"PRTE_LAUNCHED", "1"}},
      {{"LSB_JOBID", "5"}, {"LSB_JOBINDEX", "0"}},
      {{"LSB_JOBID", "5"}, {"LSB_JOBINDEX", "1"}},
      {{"LSB_JOBID", "5"}, {"LSB_JOBINDEX", "2"}},
      {{"LSB_JOBID", "5"}, {"PMIX_NAMESPACE", "1"}},
      {{"LSB_JOBID", "5"}, {"PMIX_NAMESPACE", "2"}},
      {{"COBALT_JOBID", "9"}, {"ALPS_APP_ID", "1"}},
      {{"COBALT_JOBID", "9"}, {"ALPS_APP_ID", "2"}},
      {{"OMPI_MCA_ess_base_jobid", "1"}},
      {{"OMPI_MCA_ess_base_jobid", "2"}},
      // Two hosts' mpirun may have one number.
      {{"OMPI_MCA_ess_base_jobid", "3"}, {"OMPI_MCA_orte_precondition_transports", "a-1"}},
      {{"OMPI_MCA_ess_base_jobid", "3"}, {"OMPI_MCA_orte_precondition_transports", "a-2"}},
      {{"I_MPI_HYDRA_UUID", "u-1"}, {"MPI_LOCALRANKID", "0"}},
      {{"I_MPI_HYDRA_UUID", "u-2"}, {"MPI_LOCALRANKID", "0"}},
      {{"TORCHELASTIC_RUN_ID", "a"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}},
      {{"TORCHELASTIC_RUN_ID", "b"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}},
      {{"TORCHELASTIC_RUN_ID", "b"}, {"MASTER_ADDR", "g"}, {"MASTER_PORT", "1"}},
  };
  std::set<std::string> names;
  for (const Environment& launch : launches) names.insert(NameIn(launch));
  EXPECT_THAT(names, SizeIs(launches.size()));
  EXPECT_EQ(NameIn(launches[1]), "slurm-77.0");
}

// What a process is given for itself is no part: rank, host and the like.
TEST(JobNameTest, AllProcessesOfALaunchHaveOneName) {
  const std::vector<std::pair<Environment, Environment>> pairs = {
      {{{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}},
       {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}},
      // The components of a heterogeneous job.
      {{{"SLURM_HET_JOB_ID", "77"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}},
       {{"SLURM_HET_JOB_ID", "77"}, {"SLURM_JOB_ID", "78"}, {"SLURM_STEP_ID", "0"}}},
      // mpirun in a batch script starts processes of its own host itself, and others in a step.
      {{{"SLURM_JOB_ID", "77"}, {"OMPI_MCA_ess_base_jobid", "5"}},
       {{"SLURM_JOB_ID", "77"},
        {"SLURM_STEP_ID", "0"},
        {"PMI_JOBID", "77.0"},
        {"OMPI_MCA_ess_base_jobid", "5"}}},
      {{{"SLURM_JOB_ID", "77"}, {"PRTE_LAUNCHED", "1"}, {"PMIX_NAMESPACE", "prterun-h-1@1"}},
       {{"SLURM_JOB_ID", "77"},
        {"SLURM_STEP_ID", "0"},
        {"PRTE_LAUNCHED", "1"},
        {"PMIX_NAMESPACE", "prterun-h-1@1"}}},
      {{{"SLURM_JOB_ID", "77"}, {"MPI_LOCALRANKID", "0"}},
       {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"MPI_LOCALRANKID", "0"}}},
      // An agent of torchrun that failed counts its restarts, others do not.
      {{{"TORCHELASTIC_RUN_ID", "a"}, {"TORCHELASTIC_RESTART_COUNT", "0"}},
       {{"TORCHELASTIC_RUN_ID", "a"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}},
  };
  for (const auto& [one, other] : pairs) EXPECT_EQ(NameIn(one), NameIn(other));
}

TEST(JobNameTest, ALongNameIsCutAndStaysDifferent) {
  const std::string common(300, 'x');
  const std::string one = NameIn({{"EPD_JOB", common + "1"}});
  EXPECT_THAT(one, SizeIs(kMaxJobBytes));
  EXPECT_NE(one, NameIn({{"EPD_JOB", common + "2"}}));
}

}  // namespace
}  // namespace epd::client
