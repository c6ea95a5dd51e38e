"""The engine of models with recurrent state: their programs, the slots of their states, their steps."""
