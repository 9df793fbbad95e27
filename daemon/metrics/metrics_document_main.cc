// Writes deploy/metrics.md: metrics_document FILE. A test compares.
#include <fstream>
#include <iostream>

#include "daemon/metrics/metric_table.h"

int main(int argc, char** argv) {
  std::ofstream file(argc == 2 ? argv[1] : "");
  file << epd::MetricsDocument();
  file.close();
  if (!file) std::cerr << "usage: metrics_document FILE, which can be written\n";
  return file ? 0 : 1;
}
