"""What the certificate says of the machine, read from a made-up /proc."""

from __future__ import annotations

from validation import machine

INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 245\nGPU UUID: \t GPU-00000000\n"


def test_gpu_models_in_the_order_of_their_addresses(tmp_path):
    for address, text in (("0000:41:00.0", "IRQ: 1\n"), ("0000:01:00.0", INFORMATION)):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(text)
    assert machine.gpu_models(tmp_path) == ["NVIDIA H200", "unknown"]


def test_a_machine_without_the_driver_has_no_gpus(tmp_path):
    assert machine.gpu_models(tmp_path / "gpus") == []
    assert "gpus" in machine.facts()
