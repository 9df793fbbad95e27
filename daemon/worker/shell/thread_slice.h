// When the kernel lets the calling thread run, where there are more threads than cores.
#pragma once

namespace epd {

// For a thread that does little each time it wakes, and that others wait for: it gets a core at once
// instead of after the turn of whoever has it. It loses nothing if the kernel (before 6.12) or a
// sandbox does not know of it. Not a priority: over time it gets no more than others.
void TakeShortSlices();

// For a thread whose short sleeps others wait for: they end a microsecond late in place of fifty, which is what the
// kernel lets a timer slip by otherwise.
void WakeInTime();

// For a thread that moves much and wakes often: it takes no core from those that run, and yields its
// own sooner; where cores are short it gets a third of what others get, never nothing.
void YieldToOthers();

}  // namespace epd
