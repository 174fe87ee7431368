"""Where AgentChat is not installed, the package can be imported and names the extra that is missing."""

from __future__ import annotations

import pytest

import stepfast_autogen


def test_a_name_of_agentchat_names_its_extra() -> None:
    with pytest.raises(ImportError, match=r"stepfast-autogen\[agentchat\]"):
        _ = stepfast_autogen.durable
