"""Wrong arguments of every public function of epd.jax, as tables of rows; ``programs/bad_input.py`` runs them."""
