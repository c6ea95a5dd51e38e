"""Models with recurrent state that the tests serve, and their declarations."""
