"""A bounded load on a real TorchServe: random, seeded, with kills, and with a look at what is left behind.

`plan` says how much of what, `rig` runs it: several `user`s speak at the same time, each with several conversations (`talk`),
by the `acts` that there are. `killer` kills processes meanwhile, `tally` counts, `leaks` looks at the server when it is quiet,
`replay` holds conversations again without any disturbance, and `report` tells.
"""
