// The exchanges that every backend and executor must do alike.
#pragma once

#include <vector>

#include "tests/integration/client_c/harness/exchange_case.h"

namespace epd::testing {

// Every dtype, and the edges: no tokens, no routes, one expert, drops, one rank, large rows.
std::vector<ExchangeCase> ExchangeCases();

// Expert tables of every kind, each with numbers of ranks, top-k and hidden sizes of its own.
std::vector<ExchangeCase> ExpertTableCases();

// For 6 or 8 ranks on several nodes: dtypes, expert tables, ranks without tokens or experts, padding,
// drops, no routes at all.
std::vector<ExchangeCase> CasesOfNodes(uint32_t num_ranks);

}  // namespace epd::testing
