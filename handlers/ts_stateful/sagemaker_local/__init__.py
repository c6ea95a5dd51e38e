"""An endpoint on this machine that speaks SageMaker's runtime API, in front of several TorchServes.

Stands where the service stands: it routes by session, answers the service's errors and keeps its limits, so that a client that
works with it works with SageMaker. It neither checks signatures nor bills.
"""
