from __future__ import annotations

from pathlib import Path

import pytest

from validation import loaded

SITE = "/env/lib/python3.11/site-packages"


def maps(*paths):
    return "".join(f"7f00-7f01 r-xp 00000000 fe:01 12  {path}\n" for path in paths)


def places(*paths, roots=(Path(SITE),)):
    return {o.name: o.place for o in loaded.libraries(maps(*paths), roots)}


def test_every_library_gets_the_place_it_came_from():
    assert places(
        f"{SITE}/torch/lib/libtorch_cpu.so",
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35.05",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.560.35.05",
    ) == {
        "libtorch_cpu.so": loaded.ENVIRONMENT,
        "libcudnn.so.9": loaded.ENVIRONMENT,
        "libstdc++.so.6.0.30": loaded.FOUNDATION,
        "libcuda.so.560.35.05": loaded.DRIVER,
        "libnvidia-ptxjitcompiler.so.560.35.05": loaded.DRIVER,
    }


def test_a_stack_library_from_outside_the_environment_is_found():
    hijack = "/usr/local/cuda-11.8/lib64/libcudnn_ops_infer.so.8"
    found = loaded.libraries(maps(hijack), [Path("/env")])
    assert [(o.place, o.path) for o in found] == [(loaded.ELSEWHERE, hijack)]
    assert set(places("/opt/a/libcublas.so.12", "/opt/a/libnccl.so.2").values()) == {
        loaded.ELSEWHERE
    }


def test_a_neighbour_whose_name_begins_like_the_environments_is_outside():
    assert places("/env2/libtorch.so") == {"libtorch.so": loaded.ELSEWHERE}


def test_lines_that_are_no_libraries_and_paths_with_spaces_are_read_right():
    text = (
        "7f00-7f01 rw-p 00000000 00:00 0 \n"
        "7f00-7f01 r--p 00000000 fe:01 9   /usr/bin/python3.11\n"
        "7f00-7f01 rw-p 00000000 00:00 0   [heap]\n"
        "7f00-7f01 r-xp 00000000 fe:01 9   /env/my files/libc10.so (deleted)\n"
    )
    assert loaded.libraries(text, [Path("/env")]) == [
        loaded.Origin("libc10.so", loaded.ENVIRONMENT, "/env/my files/libc10.so")
    ]


@pytest.mark.parametrize("linked", ["site-packages/torch", "site-packages/torch/libtorch.so"])
def test_what_the_environment_links_to_counts_as_inside_and_its_neighbour_does_not(
    tmp_path, linked
):
    """As in a Nix environment, which links to packages, or to their files one by one."""
    stored = tmp_path / "store" / "site-packages" / "torch"
    stored.mkdir(parents=True)
    (stored / "libtorch.so").touch()
    (tmp_path / "other" / "site-packages" / "torch").mkdir(parents=True)
    stranger = tmp_path / "other" / "site-packages" / "torch" / "libtorch.so"
    stranger.touch()
    link = tmp_path / "env" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "store" / linked)
    roots = [tmp_path / "env" / "site-packages"]
    assert places(stored / "libtorch.so", roots=roots) == {"libtorch.so": loaded.ENVIRONMENT}
    assert places(stranger, roots=roots) == {"libtorch.so": loaded.ELSEWHERE}


def test_the_interpreters_own_site_packages_is_not_its_standard_library():
    file = "/usr/lib/python3.11/site-packages/numpy/__init__.py"
    strangers = loaded.modules({"numpy": file}, [Path(SITE), Path("/usr/lib/python3.11")])
    assert [o.path for o in strangers] == [file]


def test_condas_own_libraries_are_foundation_and_its_cudnn_is_a_hijack():
    assert places("/env/lib/libstdc++.so.6.0.33", "/env/lib/libcudnn.so.9", roots=[Path(SITE)]) == {
        "libstdc++.so.6.0.33": loaded.FOUNDATION,
        "libcudnn.so.9": loaded.ELSEWHERE,
    }


def test_a_module_from_another_place_is_a_stranger_and_its_path_is_told():
    named = {
        "torch": f"{SITE}/torch/__init__.py",
        "random": "/usr/lib/python3.11/random.py",
        "numpy": "/home/user/.local/lib/python3.11/site-packages/numpy/__init__.py",
        "torch.ops": "_ops.py",
    }
    strangers = loaded.modules(named, [Path(SITE), Path("/usr/lib/python3.11")])
    assert [(o.name, o.path) for o in strangers] == [("numpy", named["numpy"])]
