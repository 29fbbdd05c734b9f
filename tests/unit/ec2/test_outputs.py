"""Reading what the tools print."""

from __future__ import annotations

from pathlib import Path

from deploy.ec2.outputs import (
    Rails,
    Said,
    environment,
    fabrics,
    gpus,
    rails,
    transports,
    ucx_lanes,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ec2"


def read(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


def test_fi_info_has_a_block_for_each_fabric_of_each_device() -> None:
    found = fabrics(read("fi_info_efa"))
    assert len(found) == 32
    assert len({one.device for one in found}) == 16
    assert {one.provider for one in found} == {"efa"}
    assert {one.fabric for one in found} == {"efa", "efa-direct"}
    assert "rdmap85s0" in {one.device for one in found}


def test_fi_info_without_indentation_as_older_ones_print_it() -> None:
    text = "provider: efa\nfabric: EFA-fe80::94:3dff:fe89:1b70\ndomain: efa_0-rdm\ntype: FI_EP_RDM"
    [one] = fabrics(text)
    assert (one.device, one.endpoint) == ("efa_0", "FI_EP_RDM")
    assert one.fabric == "EFA-fe80::94:3dff:fe89:1b70"


def test_fi_info_that_found_nothing_has_no_blocks() -> None:
    assert fabrics(read("fi_info_none")) == []


def test_transports_of_ucx_with_their_devices() -> None:
    found = transports(read("ucx_info_srd"))
    srd = [one for one in found if one.name == "srd"]
    assert len(srd) == 16
    assert srd[0].device == "rdmap85s0"
    assert {one.kind for one in found if one.name == "self"} == {"loopback"}


def test_gpus_and_none_of_an_error() -> None:
    assert [gpu.name for gpu in gpus(read("nvidia_smi_h200"))] == ["NVIDIA H200"] * 8
    assert gpus(read("nvidia_smi_failed")) == []


def test_rails_of_every_agent_whatever_the_version_calls_them() -> None:
    assert rails(read("engine_efa")) == [Rails(16, "efa")] * 8
    assert rails("Successfully created 4 control rails using provider: tcp") == [Rails(4, "tcp")]


def test_lanes_to_other_nodes_and_not_those_within() -> None:
    lanes = set(ucx_lanes(read("engine_ucx_srd")))
    assert lanes == {("srd", "rdmap85s0:1"), ("srd", "rdmap86s0:1")}
    assert list(ucx_lanes("UCX  INFO  ucp_context_0 self cfg#0 rma(tcp/lo)")) == []


def test_the_last_assignment_of_an_environment_file_counts() -> None:
    text = '# A=0\nA=1\nB="two words"\nA=3\nno assignment\n'
    assert environment(text) == {"A": "3", "B": "two words"}


def test_the_last_line_that_a_tool_has_printed() -> None:
    assert Said(1, "first\n  second  \n\n").last_line == "second"
    assert Said(1, "\n").last_line == "nothing"
