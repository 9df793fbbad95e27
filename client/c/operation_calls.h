// The operations of the C interface, ready to run.
#pragma once

#include <memory>

#include "client/c/epd_client.h"
#include "client/c/operation.h"
#include "client/c/status.h"

namespace epd::client {

// `args`: epd_<operation>_args; copied, but for the arrays that it names.
//   INVALID_ARGUMENT  a NULL, no such operation, a struct or a key that cannot be read; outputs are then zeros where their
//                     sizes are known
Status MakeRun(epd_group* group, epd_operation operation, const void* args,
               std::unique_ptr<OperationRun>* run);
Status MakeRefusal(epd_group* group, const epd_refuse_args* args,
                   std::unique_ptr<OperationRun>* run);

}  // namespace epd::client
