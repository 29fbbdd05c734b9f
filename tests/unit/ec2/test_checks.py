"""Each check of the recipe passes on a good node, and refuses for the reason that it is for."""

from __future__ import annotations

import pytest
from deploy.ec2 import checks
from deploy.ec2.checks import LIBFABRIC, UCX, Finding
from deploy.ec2.outputs import Said, fabrics
from tests.unit.ec2.test_outputs import read

DEVICES = sorted({one.device for one in fabrics(read("fi_info_efa"))})
MISSING = Said(127, "not found")
OWN = ("10.1.0.5", "172.17.0.1")
ENV = {
    "NIXL_BACKEND": "LIBFABRIC",
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "NIXL_LOG_LEVEL": "INFO",
    "VLLM_HOST_IP": "10.1.0.5",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.1.0.5",
}
UCX_ENV = {
    **ENV,
    "NIXL_BACKEND": "UCX",
    "UCX_TLS": "srd,cuda_copy,cuda_ipc,sm,self",
    "UCX_LOG_LEVEL": "info",
}


def good(name: str) -> Said:
    return Said(0, read(name))


def refused(finding: Finding, *words: str) -> None:
    assert not finding.good
    assert finding.do
    for word in words:
        assert word in finding.said


def bad_settings(env: dict[str, str]) -> dict[str, str]:
    return {one.check: one.said for one in checks.settings(env, OWN) if not one.good}


def test_devices_of_the_kernel() -> None:
    assert checks.efa_devices(DEVICES, 16).good
    refused(checks.efa_devices(DEVICES[:1], 16), "1 of 16")
    refused(checks.efa_devices([], 16), "0 of 16")


def test_libfabric_must_know_all_devices_of_the_kernel() -> None:
    assert checks.libfabric(good("fi_info_efa"), DEVICES).good
    refused(checks.libfabric(good("fi_info_efa"), [*DEVICES, "rdmap200s0"]), "rdmap200s0")


@pytest.mark.parametrize(
    ("said", "word"),
    [
        (MISSING, "no fi_info"),
        (Said(61, read("fi_info_none")), "No data available"),
        (Said(0, read("fi_info_tcp")), "no provider efa"),
        (Said(0, ""), "nothing"),
    ],
)
def test_libfabric_without_efa_is_refused(said: Said, word: str) -> None:
    refused(checks.libfabric(said, DEVICES), word)


def test_datagrams_of_efa_do_not_count() -> None:
    text = read("fi_info_efa").replace("FI_EP_RDM", "FI_EP_DGRAM")
    refused(checks.libfabric(Said(0, text), DEVICES))


def test_gpus() -> None:
    assert checks.h200s(good("nvidia_smi_h200"), 8).good
    refused(checks.h200s(good("nvidia_smi_h200"), 9), "8 of 9")
    refused(checks.h200s(Said(9, read("nvidia_smi_failed")), 8), "couldn't communicate")
    others = Said(0, "NVIDIA H100 80GB HBM3, 595.71.05\n" * 8)
    refused(checks.h200s(others, 8), "0 of 8", "H100")


def test_good_settings() -> None:
    assert bad_settings(ENV) == {}
    assert bad_settings(UCX_ENV) == {}


@pytest.mark.parametrize("name", ENV)
def test_every_setting_is_needed(name: str) -> None:
    left = {key: value for key, value in ENV.items() if key != name}
    assert bad_settings(left).keys() == {name}
    assert "unset" in bad_settings(left)[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NIXL_BACKEND", "POSIX"),
        ("FI_PROVIDER", "tcp"),
        ("FI_PROVIDER", "efa,tcp"),
        ("FI_EFA_USE_DEVICE_RDMA", "0"),
        ("NIXL_LOG_LEVEL", "WARN"),
        ("VLLM_HOST_IP", "10.1.0.9"),
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, value: str) -> None:
    assert bad_settings({**ENV, name: value}).keys() == {name}


def test_loopback_is_refused_even_if_the_node_has_it() -> None:
    found = list(checks.settings({**ENV, "VLLM_HOST_IP": "127.0.0.1"}, (*OWN, "127.0.0.1")))
    assert [one.check for one in found if not one.good] == ["VLLM_HOST_IP"]


@pytest.mark.parametrize("value", ["", "all", "tcp,srd", "srd,tcp,self", "^tcp", "rc,self"])
def test_ucx_that_may_use_tcp_is_refused(value: str) -> None:
    assert bad_settings({**UCX_ENV, "UCX_TLS": value}).keys() == {"UCX_TLS"}


def test_ucx_must_offer_srd_on_all_devices() -> None:
    assert checks.ucx(good("ucx_info_srd"), DEVICES).good
    refused(checks.ucx(good("ucx_info_tcp"), DEVICES), "only tcp")
    refused(checks.ucx(good("ucx_info_srd"), [*DEVICES, "rdmap200s0"]), "rdmap200s0")
    refused(checks.ucx(MISSING, DEVICES), "no ucx_info")
    refused(checks.ucx(Said(0, ""), []), "nothing")


def test_a_nixl_agent_on_trial() -> None:
    assert checks.trial(good("agent_efa"), LIBFABRIC, 16).good
    assert checks.trial(Said(0, ""), UCX, 16).good
    refused(checks.trial(Said(1, read("agent_none")), LIBFABRIC, 16), "NIXL_ERR_BACKEND")
    refused(checks.trial(Said(0, ""), LIBFABRIC, 16), "0 of 1")
    refused(checks.trial(good("engine_tcp"), LIBFABRIC, 16), "tcp instead of efa")
    refused(checks.trial(Said(1, "no module"), UCX, 16), "no module")


def test_the_log_of_an_engine_on_efa() -> None:
    assert checks.engine_log(read("engine_efa"), LIBFABRIC, 8, 16).good


def test_the_log_of_an_engine_that_fell_back_to_tcp_is_refused() -> None:
    refused(checks.engine_log(read("engine_tcp"), LIBFABRIC, 8, 16), "tcp instead of efa")


def test_one_rank_on_tcp_is_enough_to_refuse() -> None:
    log = read("engine_efa").replace("provider=efa", "provider=tcp", 1)
    refused(checks.engine_log(log, LIBFABRIC, 8, 16), "tcp instead of efa")


def test_a_log_that_says_nothing_is_no_proof() -> None:
    refused(checks.engine_log(read("engine_quiet"), LIBFABRIC, 8, 16), "0 of 8")
    refused(checks.engine_log("", LIBFABRIC, 8, 16), "0 of 8")
    refused(checks.engine_log(read("engine_ucx_srd"), LIBFABRIC, 8, 16), "0 of 8")


def test_every_rank_has_to_tell() -> None:
    refused(checks.engine_log(read("engine_efa"), LIBFABRIC, 9, 16), "8 of 9")


def test_an_agent_with_fewer_devices_is_refused() -> None:
    log = read("engine_efa").replace("Created 16 rails", "Created 4 rails", 1)
    refused(checks.engine_log(log, LIBFABRIC, 8, 16), "4 of 16")


def test_copies_through_the_host_are_refused() -> None:
    refused(checks.engine_log(read("engine_host_copies"), LIBFABRIC, 8, 16), "GPU memory")


def test_the_log_of_an_engine_with_ucx() -> None:
    assert checks.engine_log(read("engine_ucx_srd"), UCX, 8, 16).good
    refused(checks.engine_log(read("engine_ucx_tcp"), UCX, 8, 16), "tcp", "ens32")
    refused(checks.engine_log(read("engine_quiet"), UCX, 8, 16), "no lane over srd")
