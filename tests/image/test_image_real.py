"""The whole image: rendered from the lock, loaded by podman, and used as its users use it.

Needs the 3 GB of wheels in the artifact store, Debian's packages, root, and from Debian:
podman netavark runc docker.io docker-cli containerd iptables iproute2 docker-registry skopeo umoci
nix-bin openssh-client chromium chromium-driver.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.image.image_making import check_recorded
from tests.support.children import wait_until
from tests.support.dockerd import docker_engine
from tests.support.hosts import FACTS, assert_another, other_host
from tests.support.registry import real_registry_in
from tests.support.wheels import build_wheel
from torchlock.artifacts import Store, default_store, fetch
from torchlock.findings import find_site
from torchlock.formats.wheel import INSTALLER_METADATA
from torchlock.lock import read_lock
from torchlock.oci.layout import Layout
from torchlock.oci.load import load
from torchlock.oci.push import push
from torchlock.oci.reference import DEFAULT_TAG, parse_reference
from torchlock.realize.image import render
from torchlock.realize.image_documents import Image, documents_of
from torchlock.realize.image_plan import PLATFORM, ImageSource
from torchlock.realize.image_wheels import SITE
from torchlock.records import read_records
from torchlock.repository import this_repository
from torchlock.rootfs.lock import (
    RootfsLockError,
    fetch_debs,
    make_rootfs_lock,
    read_rootfs_lock,
    rootfs_lock_text,
)
from torchlock.uv import uv_command, uv_environment
from torchlock.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = this_repository()
RUN = [
    "podman", "--runtime", "/usr/sbin/runc", "run",
    "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
]  # fmt: skip


def run(*command: object, **more) -> str:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@dataclass
class Rendered:
    source: ImageSource
    image: Image
    out: Path
    store: Store


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Iterator[Rendered]:
    """The image rendered with nothing known but the repository's records, and compared to them.

    When the archive has dropped a locked package and the snapshot archive is out of reach, a
    root file system locked anew takes its place: everything but the digest is then tested.
    """
    root = tmp_path_factory.mktemp("image")
    shared = default_store()
    lock = read_lock(REPOSITORY.lock)
    fetch(lock.wheels(PLATFORM), shared)
    rootfs = read_rootfs_lock()
    try:
        fetch_debs(rootfs, shared)
    except RootfsLockError as error:
        print(f"the rootfs lock's packages are not to be had any more: {error}")
        rootfs = make_rootfs_lock(rootfs)
    # Artifacts are shared with other tests; layers that were made before are not.
    store = Store(root / "store")
    store.root.mkdir()
    for name in ("sha256", "partial", "locks"):
        (shared.root / name).mkdir(parents=True, exist_ok=True)
        (store.root / name).symlink_to(shared.root / name)
    records = read_records(REPOSITORY.records, PLATFORM)
    sizes = {w.wheel: w.wheel_size for w in records.wheels.values()}
    source = ImageSource(REPOSITORY, lock, rootfs, sizes)
    image, _ = render(source, root / "out", store, verify=True)
    yield Rendered(source, image, root / "out", store)
    shutil.rmtree(root)


def test_the_image_is_what_the_records_say(rendered: Rendered):
    left = check_recorded(rendered.source, read_rootfs_lock(), rendered.image)
    if left:  # shown in the summary: the machine is at no fault, but less was compared
        warnings.warn(left, stacklevel=1)


def test_the_image_has_about_twenty_layers_and_no_more_bytes_than_the_wheels(rendered: Rendered):
    assert 18 <= len(rendered.image.layers) <= 26
    groups = [b.size for title, b in rendered.image.layers if title.startswith("wheels, group")]
    assert max(groups) < 70_000_000
    spliced = sum(
        blob.size
        for title, blob in rendered.image.layers
        if not title.startswith(("Debian", "byte code", "torchlock"))
    )
    assert spliced <= 1.02 * sum(rendered.source.sizes.values())


OTHER = """
import os, sys
from pathlib import Path
os.umask(0o077)
sys.path.insert(0, {repository!r})
from torchlock.artifacts import Store
from torchlock.lock import read_lock
from torchlock.realize.image import render
from torchlock.realize.image_plan import ImageSource, PLATFORM
from torchlock.records import read_records
from torchlock.repository import this_repository
from torchlock.rootfs.lock import read_rootfs_lock
repository = this_repository()
records = read_records(repository.records, PLATFORM)
source = ImageSource(
    repository, read_lock(repository.lock), read_rootfs_lock(Path({rootfs!r})),
    {{w.wheel: w.wheel_size for w in records.wheels.values()}},
)
image, _ = render(source, Path({out!r}), Store(Path({store!r})), verify=True)
print(sys.version_info[:2], image.digest)
"""


def other_python(tmp_path: Path) -> Path:
    """Another minor version of Python with what rendering needs, pinned as for this one."""
    pins = [
        f"{name}=={version}"
        for name, version in (
            line.split("==")
            for line in run(*uv_command(), "pip", "freeze", "--python", sys.executable).split()
            if "==" in line
        )
        if name.lower() in {
            "backports-zstd", "conda-package-streaming", "deflate", "filelock", "isal", "packaging",
            "platformdirs", "py-rattler", "pyyaml", "requests", "requests-file", "rich",
            "truststore", "uv", "zstandard",
        }
    ]  # fmt: skip
    for version in ("3.12", "3.13", "3.10"):
        found = subprocess.run(
            [*uv_command(), "python", "find", "--no-python-downloads", version],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        candidates = [
            found.stdout.strip(),
            *map(str, Path.home().glob(f".pyenv/versions/{version}*/bin/python")),
        ]
        for program in candidates:
            if program and Path(program).exists():
                run(*uv_command(), "venv", "--quiet", "--python", program, tmp_path / "other")
                python = tmp_path / "other" / "bin" / "python"
                run(*uv_command(), "pip", "install", "--quiet", "--python", python, *pins,
                    env=uv_environment(index=True))  # fmt: skip
                return python
    pytest.skip("no second Python is on this machine")


def test_another_host_renders_the_same_digest(rendered: Rendered, tmp_path: Path):
    """Another Python, clock, user, umask, locale, hash seed, zlib, and one core."""
    (tmp_path / "scratch").mkdir()
    host = other_host(tmp_path / "scratch")
    (tmp_path / "rootfs.json").write_text(rootfs_lock_text(rendered.source.rootfs))
    script = OTHER.format(
        repository=str(REPOSITORY.root), rootfs=str(tmp_path / "rootfs.json"),
        out=str(tmp_path / "out"), store=str(rendered.store.root),
    )  # fmt: skip
    said = run(*host.before, other_python(tmp_path), "-c", script + FACTS, env=host.environment)
    version, digest, facts = said.rsplit(maxsplit=2)
    assert digest == rendered.image.digest
    assert_another(facts, zlib=True)
    assert "(3, 11)" not in version
    shutil.rmtree(tmp_path / "out")


def test_what_umoci_unpacks_has_the_recorded_tree_by_nix(rendered: Rendered, tmp_path: Path):
    """Copied by skopeo, unpacked by umoci, hashed by Nix: nothing of ours looks at the files."""
    copy = f"{tmp_path}/copy:t"
    run("skopeo", "copy", "--quiet", f"oci:{rendered.out}:{DEFAULT_TAG}", f"oci:{copy}")
    assert Layout(tmp_path / "copy").find("t")["digest"] == rendered.image.digest
    run("umoci", "raw", "unpack", "--rootless", "--image", copy, tmp_path / "rootfs")
    site = tmp_path / "rootfs" / SITE
    for path in [*site.rglob("__pycache__")]:
        shutil.rmtree(path)
    for path in [p for n in INSTALLER_METADATA for p in site.glob(f"*.dist-info/{n}")]:
        path.unlink()
    said = run("nix", "--extra-experimental-features", "nix-command", "hash", "path", site)
    assert said.strip() == read_records(REPOSITORY.records, PLATFORM).tree
    for name in ("rootfs", "copy"):
        shutil.rmtree(tmp_path / name)


@pytest.fixture(scope="module")
def loaded(rendered: Rendered, tmp_path_factory) -> Iterator[str]:
    """The image as podman has it, pushed to a registry and pulled from there."""
    for program in ("podman", "/usr/sbin/runc", "ssh", "chromium", "chromedriver"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    directory = tmp_path_factory.mktemp("registry")
    with real_registry_in(directory) as registry:
        name = f"{registry}/lab/torchlock:test"
        pushed = push(Layout(rendered.out), DEFAULT_TAG, parse_reference(name))
        assert pushed.digest == rendered.image.digest
        run("podman", "pull", "--quiet", "--tls-verify=false", name)
    shutil.rmtree(directory)
    assert digest_of(name) == rendered.image.digest
    yield name
    subprocess.run(["podman", "rmi", "--force", name], check=False, capture_output=True)


def digest_of(name: str) -> str:
    return run("podman", "image", "inspect", "--format", "{{.Digest}}", name).strip()


def test_the_layout_is_loaded_with_its_digest(rendered: Rendered, loaded: str):
    done = load(Layout(rendered.out), DEFAULT_TAG, "podman")
    assert done.digest_kept and done.digest == rendered.image.digest
    run("podman", "untag", loaded, done.name)
    assert digest_of(loaded) == rendered.image.digest


def inside(image: str, *command: str, options: tuple[str, ...] = ()) -> str:
    return run(*RUN, "--rm", "--network", "host", *options, image, *command)


def test_the_installed_files_are_the_locks(loaded: str):
    root = Path(run("podman", "image", "mount", loaded).strip())
    try:
        records = read_records(REPOSITORY.records, PLATFORM)
        site = replace(find_site(root / "opt" / "torchlock"), home=Path("/opt/torchlock"))
        verdict = verify(site, records)
        assert verdict.findings == ()
        assert verdict.tree == records.tree
        assert verdict.bytecode > 9000
    finally:
        run("podman", "image", "unmount", loaded)


def test_python_tools_see_the_packages(loaded: str):
    script = """
set -eu
python -c 'import torch; assert torch.__version__ == "2.7.1+cu126"; print(torch.ones(2).sum())'
pip check
pip list --format=freeze | wc -l
python -c 'import importlib.metadata as m; print(len(list(m.distributions())))'
find / -xdev -name "ssh_host_*" -o -xdev -name authorized_keys | wc -l
"""
    said = inside(loaded, "bash", "-c", script).split("\n")
    wheels = len(read_lock(REPOSITORY.lock).wheels(PLATFORM))
    assert said[0] == "tensor(2.)"
    assert said[1] == "No broken requirements found."
    assert [int(n) for n in said[2:5]] == [wheels, wheels, 0]


def test_torch_compile_finds_a_compiler(loaded: str):
    script = "import torch; print(torch.compile(lambda x: (2 * x).sum())(torch.ones(8)).item())"
    assert inside(loaded, "python", "-c", script).strip().endswith("16.0")


def test_debian_is_whole_and_can_be_added_to(loaded: str):
    script = """
set -eu
dpkg --audit
apt-get check
ldconfig -p | grep -c libstdc++.so.6
python -c 'import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 100)'
apt-get update >/dev/null && apt-get install -y --no-install-recommends hello >/dev/null
hello
"""
    said = inside(loaded, "bash", "-c", script)
    assert "1\nTrue\nHello, world!" in said


VALIDATE = ("validate", "--device", "cpu", "--json", "/out/certificate.json", "--only", "stack")


def test_validate_gives_the_hosts_digests_and_doctor_is_there(loaded: str, tmp_path: Path):
    """Lock, files and numbers; as `user` would run it, with nothing to write to but /dev/shm."""
    tmp_path.chmod(0o777)
    said = inside(
        loaded, *VALIDATE, "transformer",
        options=(
            "--user", "1000", "--read-only", "--read-only-tmpfs=false",
            "--volume", f"{tmp_path}:/out",
        ),
    )  # fmt: skip
    assert "identical to the reference of class cpu x86-64 avx2" in " ".join(said.split())
    certificate = json.loads((tmp_path / "certificate.json").read_text())
    records = read_records(REPOSITORY.records, PLATFORM)
    assert certificate["verdict"] == "holds"
    assert certificate["lock"]["verdict"] == certificate["files"]["verdict"] == "holds"
    assert certificate["lock"]["digest"] == read_lock(REPOSITORY.lock).digest
    assert certificate["files"]["tree"] == records.tree
    assert certificate["files"]["wheels"] == {w.name: w.tree for w in records.wheels.values()}
    assert "byte code files are what their source compiles to" in certificate["files"]["evidence"]
    assert "usage" in inside(loaded, "doctor", "--help")


def test_validate_names_what_was_changed_in_the_container(loaded: str, tmp_path: Path):
    # Two modules that no check imports: a comment more, and code under a header that still fits.
    script = f"""
set -eu
cd /opt/torchlock/lib/python3.11/site-packages/torch/utils/benchmark/utils
echo '# changed' >>timer.py
printf X | dd of=__pycache__/compare.cpython-311.pyc bs=1 seek=44 conv=notrunc
exec /opt/torchlock/libexec/entrypoint {" ".join(VALIDATE)}
"""
    done = subprocess.run(
        [*RUN, "--rm", "--volume", f"{tmp_path}:/out", loaded, "bash", "-c", script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-2000:]
    below = "lib/python3.11/site-packages/torch/utils/benchmark/utils"
    assert f"changed: {below}/timer.py" in done.stderr
    assert f"{below}/__pycache__/compare.cpython-311.pyc: its code is not" in done.stderr
    files = json.loads((tmp_path / "certificate.json").read_text())["files"]
    assert files["verdict"] == "does not hold"
    assert files["tree"] != read_records(REPOSITORY.records, PLATFORM).tree


def test_the_first_notebook_runs_top_to_bottom(loaded: str):
    script = """
set -eu
cd /workspace/notebooks
jupyter nbconvert --to notebook --execute --stdout --log-level=ERROR first.ipynb
"""
    said = inside(loaded, "bash", "-c", script, options=("--user", "1000"))
    assert "step   99  loss" in said and "image/png" in said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(image: str, *options: str, ssh: int = 22) -> Container:
    """Start a container that serves, its ports published on free ones of 127.0.0.1."""
    ports = (8888, ssh)
    published = [f"--publish=127.0.0.1::{port}" for port in ports]
    started = run(*RUN, "--detach", *published, *options, image).strip()
    places = [run("podman", "port", started, f"{port}/tcp") for port in ports]
    return Container(started, *(int(place.rpartition(":")[2]) for place in places))


@dataclass(frozen=True)
class Container:
    """A container that serves, and the ports of 127.0.0.1 to reach it by."""

    id: str
    jupyter: int
    ssh: int = 0

    def logs(self) -> str:
        done = subprocess.run(
            ["podman", "logs", self.id], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def token(self) -> str:
        """Wait until JupyterLab is up and return its token."""
        for _ in range(300):
            if found := re.search(r"127\.0\.0\.1:\d+/lab\?token=(\w+)", self.logs()):
                return found[1]
            time.sleep(0.2)
        raise AssertionError(f"JupyterLab did not start:\n{self.logs()}")

    def api(self, path: str, token: str) -> int:
        url = f"http://127.0.0.1:{self.jupyter}/{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def stop(self) -> int:
        """Send SIGTERM, SIGKILL after 30 seconds; return the exit code."""
        run("podman", "stop", "--time", "30", self.id)
        return int(run("podman", "inspect", "--format", "{{.State.ExitCode}}", self.id))

    def remove(self) -> None:
        subprocess.run(["podman", "rm", "--force", self.id], check=False, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    for name in ("mine", "mate", "other"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name)
    return directory


@pytest.fixture(scope="module")
def serving(loaded: str, keys: Path) -> Iterator[Container]:
    """One container for many tests, with two keys as a file of Windows has them."""
    given = "".join(f"{(keys / name).read_text().strip()}\r\n" for name in ("mine.pub", "mate.pub"))
    container = serve(
        loaded, "--env", f"AUTHORIZED_KEYS={given}", "--env", "GREETING=hello from outside",
        "--env", "API_SECRET=s3", "--env", 'JSON={"a": "C:\\\\x # y"}',
    )  # fmt: skip
    try:
        container.token()
        yield container
        assert container.stop() == 143, "it ended by itself, before SIGKILL (137)"
    finally:
        container.remove()


def ssh(port: int, key: Path, *more: str, program: str = "ssh") -> list[str]:
    return [
        program, "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes",
        "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-i", str(key),
        "-o", f"Port={port}", *more,
    ]  # fmt: skip


def test_ssh_lets_the_key_in_with_the_containers_environment(serving: Container, keys: Path):
    script = 'id -un; echo "$GREETING"; command -v python; bash -lc "command -v python"; env'
    script += '; touch ~/written && echo "$HOME"'
    said = run(*ssh(serving.ssh, keys / "mine", "user@127.0.0.1", script)).splitlines()
    assert said[:4] == [
        "user", "hello from outside", "/opt/torchlock/bin/python", "/opt/torchlock/bin/python",
    ]  # fmt: skip
    assert "NVIDIA_VISIBLE_DEVICES=all" in said
    assert 'JSON={"a": "C:\\\\x # y"}' in said and said[-1] == "/home/user"
    assert not any(line.startswith(("AUTHORIZED_KEYS", "JUPYTER_TOKEN")) for line in said)


def test_each_key_is_let_in(serving: Container, keys: Path):
    assert run(*ssh(serving.ssh, keys / "mate", "user@127.0.0.1", "id", "-un")) == "user\n"
    assert "keys: 2" in serving.logs()


@pytest.mark.parametrize(("key", "user"), [("other", "user"), ("mine", "root")])
def test_ssh_keeps_others_out(serving: Container, keys: Path, key: str, user: str):
    command = ssh(serving.ssh, keys / key, f"{user}@127.0.0.1", "true")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 255 and "Permission denied (publickey)" in done.stderr


def test_scp_and_sftp_copy(serving: Container, keys: Path, tmp_path: Path):
    (tmp_path / "there").write_bytes(os.urandom(100_000))
    where = "user@127.0.0.1:/home/user/file"
    run(*ssh(serving.ssh, keys / "mine", str(tmp_path / "there"), where, program="scp"))
    run(*ssh(serving.ssh, keys / "mine", where, str(tmp_path / "back"), program="scp"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()
    batch = f"get file {tmp_path}/again\nrm file\n"
    command = ssh(serving.ssh, keys / "mine", "-b", "-", "user@127.0.0.1", program="sftp")
    run(*command, input=batch)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "there").read_bytes()


def test_ssh_forwards_jupyters_port(serving: Container, keys: Path):
    port = free_port()
    forward = f"{port}:127.0.0.1:8888"
    command = ssh(serving.ssh, keys / "mine", "-N", "-L", forward, "user@127.0.0.1")
    with subprocess.Popen(command) as process:
        try:
            for _ in range(50):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=20) as answer:
                assert b"version" in answer.read()
        finally:
            process.terminate()


def test_jupyter_wants_its_token_and_runs_as_the_user(serving: Container):
    token = serving.token()
    assert serving.api("api/contents", "wrong") == 403
    assert serving.api("api/contents/notebooks/first.ipynb", token) == 200
    said = run("podman", "exec", serving.id, "ps", "-eo", "user:20,args")
    [line] = [row for row in said.splitlines() if "jupyter-lab" in row]
    assert line.startswith("user ")
    run("podman", "exec", serving.id, "/opt/torchlock/libexec/health")


def test_a_browser_trains_in_a_notebook(serving: Container, tmp_path: Path):
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    for argument in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", "--window-size=1300,1400", f"--user-data-dir={tmp_path}/chrome",
    ):  # fmt: skip
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    try:
        wait = WebDriverWait(browser, 300, ignored_exceptions=(Exception,))
        place = f"http://127.0.0.1:{serving.jupyter}/lab/tree/notebooks/first.ipynb"
        browser.get(f"{place}?token={serving.token()}")

        def text(driver) -> str:  # also of cells that are out of sight
            return driver.execute_script("return document.body.textContent")

        wait.until(lambda b: "Idle" in text(b))
        wait.until(lambda b: b.find_element(By.XPATH, "//div[text()='Run']")).click()
        wait.until(lambda b: b.find_element(By.XPATH, "//div[text()='Run All Cells']")).click()
        wait.until(lambda b: "step   99  loss" in text(b))
        shots = Path(os.environ.get("TORCHLOCK_SCREENSHOTS") or tmp_path)
        shots.mkdir(parents=True, exist_ok=True)
        assert browser.save_screenshot(str(shots / "jupyterlab.png"))
    finally:
        browser.quit()


def test_an_unprivileged_user_gets_both_servers_and_keeps_the_host_key(
    loaded: str, keys: Path, tmp_path: Path
):
    """With more variables than sshd bears, and nothing but volumes and /tmp to write to."""
    (tmp_path / "many").write_text("".join(f"MANY_{n}={n}\n" for n in range(1200)))
    volume = f"torchlock-test-{os.getpid()}"
    prints = []
    try:
        many = ("--env-file", f"{tmp_path / 'many'}", "--env", f"LONG={'x' * 100_000}")
        for more in ((), many):
            container = serve(
                loaded, "--user", "1000", "--cap-drop", "ALL", "--security-opt",
                "no-new-privileges", "--read-only", "--read-only-tmpfs=false",
                "--tmpfs", "/tmp:mode=1777", "--volume", f"{volume}:/etc/ssh/host_keys",
                "--volume", f"{keys / 'mine.pub'}:/etc/ssh/authorized_keys:ro", *more, ssh=2222,
            )  # fmt: skip
            try:
                assert container.api("api/contents", container.token()) == 200
                script = "mkdir ~/.vscode-server && env"
                said = run(
                    *ssh(container.ssh, keys / "mine", "user@127.0.0.1", script)
                ).splitlines()
                assert "HOME=/tmp/home-1000" in said
                assert ("MANY_9=9" in said) == bool(more)
                run("podman", "exec", container.id, "/opt/torchlock/libexec/health")
                logs = container.logs()
                prints += re.findall(r"host key (SHA256:\S+)", logs)
                assert "port 22: Permission denied. SSH takes 2222" in logs
                assert ("variables missing in SSH sessions" in logs) == bool(more)
                assert container.stop() == 143
            finally:
                container.remove()
        assert len(prints) == 2 and prints[0] == prints[1]
    finally:
        subprocess.run(["podman", "volume", "rm", volume], check=False, capture_output=True)


def test_any_user_on_the_hosts_network_serves_on_the_port_given(loaded: str, keys: Path):
    port = free_port()
    started = run(
        *RUN, "--detach", "--network", "host", "--user", "12345:0", "--read-only",
        "--read-only-tmpfs=false", "--env", f"TORCHLOCK_JUPYTER_PORT={port}",
        "--env", f"AUTHORIZED_KEYS={(keys / 'mine.pub').read_text()}", loaded,
    )  # fmt: skip
    container = Container(started.strip(), port)
    try:
        assert container.api("api/contents", container.token()) == 200
        assert "no SSH: user 12345 is not `user`" in container.logs()
    finally:
        container.remove()


def test_a_restricted_pod_serves_on_a_volume_of_its_group(loaded: str, tmp_path: Path):
    """Any UID, no capabilities, a writable /tmp, and a volume that fsGroup made writable."""
    os.chown(tmp_path, 0, 1000650000)
    tmp_path.chmod(0o2775)
    container = serve(
        loaded, "--user", "1000660000:0", "--group-add", "1000650000", "--read-only",
        "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "--tmpfs", "/tmp:mode=1777", "--volume", f"{tmp_path}:/workspace",
    )  # fmt: skip
    try:
        assert container.api("api/contents/notebooks/first.ipynb", container.token()) == 200
        assert "cannot be written" not in container.logs()
    finally:
        container.remove()


def test_what_cannot_start_says_what_to_type(loaded: str):
    for options, command, code, said in (
        (("--cap-drop", "ALL"), (), 2, "start the container with --user 1000"),
        ((), ("jupiter",), 127, "there is no command jupiter here"),
        (("--pid", "host"), ("bash", "-c", "exit 3"), 3, ""),
    ):
        done = subprocess.run(
            [*RUN, "--rm", "--network", "none", *options, loaded, *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code and said in done.stderr, done.stderr
        assert "Tini is not running as PID 1" not in done.stderr


def test_a_container_is_judged_by_the_servers_that_it_was_started_to_run(loaded: str):
    """podman leaves the check out of images that it gets as OCI ones, so it is named."""
    check = ("--health-cmd", "/opt/torchlock/libexec/health", "--health-interval", "disable")

    def health(container: Container) -> int:
        command = ["podman", "healthcheck", "run", container.id]
        return subprocess.run(command, capture_output=True, check=False).returncode

    command = (*RUN, "--detach", "--network", "none", *check, loaded, "sleep", "1000")
    training, container = Container(run(*command).strip(), 0), serve(loaded, *check)
    try:
        assert health(training) == 0
        container.token()
        assert health(container) == 0
        run("podman", "exec", container.id, "pkill", "-STOP", "-f", "jupyter-lab")
        assert health(container) == 1
        assert health(training) == 0
    finally:
        training.remove()
        container.remove()


def test_the_user_adds_packages_in_an_environment_of_their_own(loaded: str, tmp_path: Path):
    """What docs/image.md says, with a package that wants torch: the stack's serves it."""
    tmp_path.chmod(0o755)
    build_wheel(tmp_path, "added", requires=("torch",))
    script = """
set -eu
python -m venv --system-site-packages --without-pip ~/mine
. ~/mine/bin/activate
pip install --quiet --no-index --find-links /wheels added
python -c 'import added, torch; print(added.__file__, torch.__file__)'
/opt/torchlock/bin/python -c 'import added' 2>&1 | tail -n 1
"""
    said = inside(
        loaded, "bash", "-c", script, options=("--user", "1000", "--volume", f"{tmp_path}:/wheels")
    ).splitlines()  # fmt: skip
    site = "lib/python3.11/site-packages"
    assert said == [
        f"/home/user/mine/{site}/added/__init__.py /opt/torchlock/{site}/torch/__init__.py",
        "ModuleNotFoundError: No module named 'added'",
    ]  # fmt: skip


def test_docker_runs_it_with_published_ports_and_judges_its_health(
    rendered: Rendered, keys: Path, tmp_path: Path
):
    """The image without its big wheels, which neither server needs, as README starts it."""
    name = "pytorch_cuda_v2.7:light"
    layers = [
        (title, blob)
        for title, blob in rendered.image.layers
        if title.startswith(("Debian: system", "Debian: conf", "wheels, group", "byte code, group"))
    ]
    light = documents_of(rendered.source, layers, rendered.image.layers[-1][1])
    layout = Layout(rendered.out)
    for made in light.documents:
        layout.add_document(made)
    layout.publish(name, light.manifest, [light.referrer])
    with docker_engine(tmp_path) as engine:
        load(layout, name, "docker")
        run(
            "docker", "run", "--detach", "--name", "pt_dev", "-p", "8888:8888", "-p", "2222:22",
            "--env", f"AUTHORIZED_KEYS={(keys / 'mine.pub').read_text()}",
            "--volume", f"{tmp_path}/no.pub:/etc/ssh/authorized_keys:ro",
            "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
            "--health-interval", "1s", "--health-timeout", "3s", "--health-start-period", "1s",
            "--health-retries", "2", name,
        )  # fmt: skip

        def wait_for(health: str) -> None:
            form = "{{.State.Health.Status}}"
            wait_until(
                lambda: run("docker", "inspect", "--format", form, "pt_dev").strip() == health,
                health, 120,
            )  # fmt: skip

        wait_for("healthy")
        fetching = (
            "import urllib.request as u; print(u.urlopen('http://localhost:8888/api').status)"
        )
        assert run(*engine.beside(sys.executable, "-c", fetching)) == "200\n"
        command = ssh(2222, keys / "mine", "user@localhost", "id", "-un")
        assert run(*engine.beside(*command)) == "user\n"
        said = subprocess.run(
            ["docker", "logs", "pt_dev"], capture_output=True, text=True, check=True
        ).stderr
        assert "/etc/ssh/authorized_keys is a directory, not a file" in said
        assert "/dev/shm has 64 MB" in said
        run("docker", "exec", "pt_dev", "pkill", "-STOP", "-f", "jupyter-lab")
        wait_for("unhealthy")
        run("docker", "exec", "pt_dev", "pkill", "-CONT", "-f", "jupyter-lab")
        run("docker", "stop", "--time", "30", "pt_dev")
        state = run("docker", "inspect", "--format", "{{.State.ExitCode}}", "pt_dev")
        assert state.strip() == "143"
        run("docker", "rm", "pt_dev")
