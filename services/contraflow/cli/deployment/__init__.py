"""A deployment on this machine: etcd, the services, vLLM engines on CPU cores or sim engines."""

from contraflow.cli.deployment.addresses import RouterHandle
from contraflow.cli.deployment.deployment import Deployment
from contraflow.cli.deployment.engine_command import EngineHandle
from contraflow.cli.deployment.errors import (
    DeploymentError,
    NotReady,
    ProcessDied,
    SetupMissing,
)
from contraflow.cli.deployment.metrics import PromptTokens, prompt_tokens
from contraflow.cli.deployment.spec import MODEL_NAME, DeploymentSpec, EngineKind

__all__ = [
    "MODEL_NAME",
    "Deployment",
    "DeploymentError",
    "DeploymentSpec",
    "EngineHandle",
    "EngineKind",
    "NotReady",
    "ProcessDied",
    "PromptTokens",
    "RouterHandle",
    "SetupMissing",
    "prompt_tokens",
]
