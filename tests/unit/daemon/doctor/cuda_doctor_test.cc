// Goal: what a probe found becomes findings with a consequence and a fix, a machine without a GPU is a
// good machine, and what is optional is no problem when it is absent.
#include "daemon/doctor/cuda_doctor.h"

#include <google/protobuf/text_format.h>

#include <functional>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/driver/cuda_abi.h"

namespace epd {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

v1::CudaProbe GoodProbe() {
  v1::CudaProbe probe;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        gpu_hardware: true
        kernel_driver: "580.65.06"
        driver { path: "/usr/lib/libcuda.so.580.65.06" version: 13000 }
        init { done: true }
        nvcc: "/usr/local/cuda/bin/nvcc"
        kernels_driver: 525
        nccl { path: "/usr/lib/libnccl.so.2" version: 23007 }
        nccl_ep { path: "/usr/lib/libnccl_ep.so" version: 200 }
      )pb",
      &probe));
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    v1::CudaProbe::Device& device = *probe.add_devices();
    device.set_ordinal(ordinal);
    device.set_name("H200");
    device.set_id(ordinal == 0 ? "GPU-0a" : "GPU-1b");
    device.set_compute_major(9);
    device.mutable_context()->set_done(true);
    device.mutable_virtual_memory()->set_done(true);
    device.mutable_ipc_handle()->set_done(true);
    device.mutable_kernels()->set_done(true);
    device.mutable_stream_memory_operations()->set_done(true);
  }
  return probe;
}

const v1::Finding* Find(const v1::GetDoctorResponse& said, const std::string& what) {
  for (const v1::Finding& finding : said.findings()) {
    if (finding.what() == what) return &finding;
  }
  return nullptr;
}

TEST(CudaDoctor, AMachineWithoutAGpuHasOneGoodFinding) {
  v1::CudaProbe probe;
  probe.mutable_driver()->set_problem("libcuda.so.1: cannot open shared object file");
  const v1::GetDoctorResponse said = DiagnoseCuda(probe, "");
  ASSERT_THAT(said.findings(), SizeIs(1));
  EXPECT_TRUE(said.findings(0).ok());
  EXPECT_THAT(said.findings(0).found(), HasSubstr("no NVIDIA GPU"));
}

TEST(CudaDoctor, AGoodMachineHasNoProblemAndIsToldThatTheBackendIsNotThere) {
  const v1::GetDoctorResponse said = DiagnoseCuda(GoodProbe(), "");
  for (const v1::Finding& finding : said.findings()) {
    EXPECT_TRUE(finding.ok()) << finding.what() << ": " << finding.found();
    EXPECT_FALSE(finding.found().empty()) << finding.what();
  }
  EXPECT_THAT(Find(said, "cuda backend")->found(), HasSubstr("this machine has what it needs"));
  EXPECT_THAT(Find(said, "cuda backend")->consequence(), HasSubstr("backend=cuda"));
  EXPECT_EQ(Find(said, "NCCL EP")->found(),
            "0.2.0 at /usr/lib/libnccl_ep.so, nvcc at /usr/local/cuda/bin/nvcc");
  EXPECT_EQ(Find(said, "cuda driver")->found(),
            "CUDA 13.0 at /usr/lib/libcuda.so.580.65.06, kernel 580.65.06");
}

TEST(CudaDoctor, EachProblemIsFoundAloneWithConsequenceAndFix) {
  using Probe = v1::CudaProbe;
  const std::map<std::string, std::function<void(Probe&)>> problems = {
      {"cuda driver", [](Probe& p) { p.mutable_driver()->set_problem("no cuGetProcAddress_v2"); }},
      {"cuda:1", [](Probe& p) { p.mutable_devices(1)->set_compute_major(7); }},
      {"cuda:0 staging",
       [](Probe& p) {
         p.mutable_devices(0)->mutable_virtual_memory()->set_problem("cuMemCreate: 801");
         p.mutable_devices(0)->mutable_ipc_handle()->set_problem("cuIpcGetMemHandle: 801");
       }},
      {"cuda:1 kernels",
       [](Probe& p) {
         p.mutable_devices(1)->mutable_kernels()->set_problem("cuModuleLoadData: 222");
       }},
      {"cuda:1 stream memory operations",
       [](Probe& p) {
         p.mutable_devices(1)->mutable_stream_memory_operations()->set_problem("did not end");
       }},
      {"cuda:0",
       [](Probe& p) {
         p.mutable_devices(0)->set_compute_mode(cuda::kComputeModeExclusiveProcess);
       }},
      {"cuda peer access", [](Probe& p) { p.mutable_devices(0)->add_no_access_to(1); }},
  };
  for (const auto& [what, break_it] : problems) {
    Probe probe = GoodProbe();
    break_it(probe);
    const v1::GetDoctorResponse said = DiagnoseCuda(probe, "");
    ASSERT_NE(Find(said, what), nullptr) << what;
    for (const v1::Finding& finding : said.findings()) {
      EXPECT_EQ(finding.ok(), finding.what() != what) << finding.what() << " when " << what;
      if (finding.ok()) continue;
      EXPECT_FALSE(finding.consequence().empty()) << finding.what();
      EXPECT_FALSE(finding.fix().empty()) << finding.what();
    }
  }
}

TEST(CudaDoctor, AGpuThatOneProcessAloneMayHaveIsNamedWithItsModeAndWhatToDo) {
  v1::CudaProbe probe = GoodProbe();
  for (v1::CudaProbe::Device& device : *probe.mutable_devices())
    device.set_compute_mode(cuda::kComputeModeExclusiveProcess);
  const v1::GetDoctorResponse said = DiagnoseCuda(probe, "");
  const v1::Finding& found = *Find(said, "cuda:1");
  EXPECT_FALSE(found.ok());
  EXPECT_THAT(found.found(), HasSubstr("H200 GPU-1b"));
  EXPECT_THAT(found.found(), HasSubstr("compute mode EXCLUSIVE_PROCESS"));
  EXPECT_THAT(found.consequence(), HasSubstr("epd's worker and each client need one"));
  EXPECT_THAT(found.fix(), HasSubstr("nvidia-smi -i GPU-1b -c DEFAULT"));
  EXPECT_THAT(WhyNoCuda(probe), HasSubstr("cuda:0: it is in compute mode EXCLUSIVE_PROCESS"));
  EXPECT_THAT(Find(said, "cuda backend")->found(), HasSubstr("this machine cannot run it"));
  // MPS's server is the one process then.
  for (v1::CudaProbe::Device& device : *probe.mutable_devices()) device.set_mps(true);
  EXPECT_EQ(WhyNoCuda(probe), "");
  const v1::GetDoctorResponse shared = DiagnoseCuda(probe, "");
  EXPECT_TRUE(Find(shared, "cuda:1")->ok());
}

TEST(CudaDoctor, SaysWhatTurnsCostAndWhatMpsWouldCost) {
  v1::CudaProbe probe = GoodProbe();
  const v1::GetDoctorResponse without = DiagnoseCuda(probe, "");
  const v1::Finding& off = *Find(without, "cuda MPS");
  EXPECT_TRUE(off.ok());
  EXPECT_EQ(off.found(), "not in use");
  EXPECT_THAT(off.consequence(),
              HasSubstr("each change from one process to the other costs about 150 us"));
  EXPECT_THAT(off.consequence(),
              HasSubstr("a group with backend=cuda or nccl_ep takes them today"));
  EXPECT_THAT(off.fix(), HasSubstr("one process's illegal address then ends the contexts of all"));
  probe.mutable_devices(0)->set_mps(true);
  const v1::GetDoctorResponse with = DiagnoseCuda(probe, "");
  const v1::Finding& on = *Find(with, "cuda MPS");
  EXPECT_THAT(on.consequence(), HasSubstr("ends the contexts of all processes"));
  EXPECT_THAT(on.fix(), HasSubstr("kernels then take turns, of about 150 us"));
  for (const v1::Finding* mps : {&off, &on}) EXPECT_THAT(mps->fix(), Not(HasSubstr("none needed")));
}

TEST(CudaDoctor, TheDriverThatTheKernelsNeedIsSaidAlsoWhereTheyLoad) {
  v1::CudaProbe probe = GoodProbe();
  EXPECT_EQ(Find(DiagnoseCuda(probe, ""), "cuda:0 kernels")->found(),
            "works; they need NVIDIA's driver 525 or newer");
  probe.set_kernels_driver(580);
  for (v1::CudaProbe::Device& device : *probe.mutable_devices()) {
    device.mutable_kernels()->set_problem("cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION");
  }
  const v1::GetDoctorResponse said = DiagnoseCuda(probe, "");
  EXPECT_THAT(Find(said, "cuda:0 kernels")->fix(), HasSubstr("driver 580 or newer, or a build"));
  EXPECT_THAT(WhyNoCuda(probe), HasSubstr("cuda:1: kernels: cuModuleLoadData"));
}

TEST(CudaDoctor, IpcHandlesAloneAreGoodEnoughAndSaySo) {
  v1::CudaProbe probe = GoodProbe();
  probe.mutable_devices(0)->mutable_virtual_memory()->set_problem("cuMemCreate: 801");
  EXPECT_EQ(BestStaging(probe.devices(0)), StagingWay::kIpcHandle);
  EXPECT_EQ(BestStaging(probe.devices(1)), StagingWay::kVirtualMemory);
  const v1::GetDoctorResponse said = DiagnoseCuda(probe, "");
  EXPECT_TRUE(Find(said, "cuda:0 staging")->ok());
  EXPECT_THAT(Find(said, "cuda:0 staging")->consequence(), HasSubstr("die with their worker"));
  EXPECT_EQ(WhyNoCuda(probe), "");
}

TEST(CudaDoctor, WhatNcclEpLacksIsNamedAndIsNoProblem) {
  using Probe = v1::CudaProbe;
  const std::map<std::string, std::function<void(Probe&)>> lacks = {
      {"no libnccl_ep.so or libnccl_ep.so.0 was opened",
       [](Probe& p) { p.mutable_nccl_ep()->clear_path(); }},
      {"expected 0.2.0",
       [](Probe& p) { p.mutable_nccl_ep()->set_problem("0.1.0, expected 0.2.0"); }},
      {"needs NCCL 2.30.7 or newer, but older than 2.31.0, and there is 2.28.9",
       [](Probe& p) { p.mutable_nccl()->set_version(22809); }},
      {"and there is 2.30.4", [](Probe& p) { p.mutable_nccl()->set_version(23004); }},
      {"and there is 2.31.0", [](Probe& p) { p.mutable_nccl()->set_version(23100); }},
      {"compute capability 9.0",
       [](Probe& p) {
         for (Probe::Device& device : *p.mutable_devices()) device.set_compute_major(8);
       }},
      {"with nvcc", [](Probe& p) { p.clear_nvcc(); }},
  };
  EXPECT_EQ(WhyNoNcclEp(GoodProbe()), "");
  for (const int nccl : {23007, 23008, 23099}) {
    v1::CudaProbe probe = GoodProbe();
    probe.mutable_nccl()->set_version(nccl);
    EXPECT_EQ(WhyNoNcclEp(probe), "") << nccl;
  }
  for (const auto& [why, take_away] : lacks) {
    Probe probe = GoodProbe();
    take_away(probe);
    EXPECT_THAT(WhyNoNcclEp(probe), HasSubstr(why));
    const v1::GetDoctorResponse said = DiagnoseCuda(probe, "");
    EXPECT_TRUE(Find(said, "NCCL EP")->ok()) << why;
    EXPECT_THAT(Find(said, "NCCL EP")->consequence(), HasSubstr("backend=nccl_ep"));
    EXPECT_EQ(WhyNoCuda(probe), "") << "the cuda backend needs none of it";
  }
}

TEST(CudaDoctor, AProbeThatDiedSaysWhereAndWhatItHadFound) {
  v1::CudaProbe probe = GoodProbe();
  probe.set_step("libnccl_ep");
  probe.clear_nccl_ep();
  const v1::GetDoctorResponse said = DiagnoseCuda(probe, "was killed by signal 6 (Aborted)");
  EXPECT_EQ(said.findings(0).what(), "cuda probe");
  EXPECT_FALSE(said.findings(0).ok());
  EXPECT_EQ(said.findings(0).found(),
            "the process that looks for CUDA was killed by signal 6 (Aborted) at libnccl_ep");
  EXPECT_TRUE(Find(said, "cuda:1")->ok());
}

TEST(CudaDoctor, NoDeviceThatServesIsExplainedDeviceByDevice) {
  v1::CudaProbe probe = GoodProbe();
  probe.mutable_devices(0)->set_compute_major(7);
  probe.mutable_devices(0)->set_compute_minor(5);
  probe.mutable_devices(1)->mutable_context()->set_problem("CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(WhyNoCuda(probe),
            "cuda:0: compute capability 7.5, expected 8.0 or newer; cuda:1: a context: "
            "CUDA_ERROR_OUT_OF_MEMORY (2)");
}

}  // namespace
}  // namespace epd
