"""Multi-turn workloads against OpenAI endpoints, for ``contraflow bench``.

what is sent: workload, shapes, distributions, vllm_file, history (all pure)
sending it: endpoint (one request), driver (conversations on several legs in alternation)
what came of it: measured (samples and failures), statistics, report, plots
"""
