#include "client/c/interrupt.h"
#include "client/jax/epd_jax.h"

void epd_jax_watch_interrupts(void) { epd::client::WatchInterrupts(); }
