// The page for people.
#pragma once

#include <string>

namespace epd {

// One file of HTML that shows /figures.json; page.html with the errors of deploy/runbook.md.
std::string PageHtml();

// Content-Security-Policy of a page: its own script and style, and requests to where it came from; nothing else.
std::string PagePolicy(const std::string& html);

}  // namespace epd
