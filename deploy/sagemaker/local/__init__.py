"""A local endpoint that speaks SageMaker's runtime API, in front of several TorchServes.

It routes by session and answers with the service's errors and limits. It neither checks signatures nor bills.
"""
