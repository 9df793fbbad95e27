// A report about a plan, with the numbers that a report word has no room for.
#pragma once

#include "kernels/cuda/report.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// `got`: the header of the plan as it was checked; `want`: as it should have been. Any bytes may stand
// in `got`. A sound plan of something else is the caller's mistake (kInvalidArgument), one of another
// epoch kAborted, any other fault of a plan kDataLoss. {} for kNoReport.
KernelError ReadPlanReport(ReportWord word, const PlanHeader& got, const PlanHeader& want);

}  // namespace epd::cuda
