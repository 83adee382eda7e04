"""The image's entry point and health check, run in a root of their own with stub servers."""

from __future__ import annotations

import http.server
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.scratch_root import ENTRYPOINT, HEALTH, ScratchRoot, Serving, scratch_root

NO_CAPABILITIES = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")


@pytest.fixture
def root(tmp_path: Path) -> ScratchRoot:
    for directory in (*tmp_path.parents, tmp_path):  # users other than root have to get there
        if directory.name.startswith("pytest-") or directory == tmp_path:
            directory.chmod(0o755)
    return scratch_root(tmp_path / "root")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed (openssh-client)")
    directory = tmp_path_factory.mktemp("keys")
    for name in ("mine", "other"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", directory / name]
        subprocess.run(command, check=True)
    return directory


@pytest.fixture(scope="module")
def mine(keys: Path) -> str:
    return (keys / "mine.pub").read_text().strip()


@contextmanager
def ssh(root: ScratchRoot, key: str, **more) -> Iterator[Serving]:
    with root.serving(ssh=True, AUTHORIZED_KEYS=key, **more) as serving:
        yield serving


def sshd_config(root: ScratchRoot) -> dict[str, str]:
    """What sshd was started with: the first line of each keyword, which is the one that counts."""
    lines = (root / "out/sshd_config").read_text().splitlines()
    rows = (line.split(" ", 1) for line in reversed(lines) if line and not line.startswith("#"))
    return dict(rows)


def session(root: ScratchRoot) -> dict[str, str]:
    """Read SetEnv as sshd does: quoted words, in which a backslash quotes itself and quotes."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', sshd_config(root)["SetEnv"])
    return dict(re.sub(r"\\(.)", r"\1", word).split("=", 1) for word in words)


def test_both_servers_run_and_end_together(root: ScratchRoot, mine: str):
    with ssh(root, mine, JUPYTER_TOKEN="t") as serving:
        assert (root / "out/jupyter.uid").read_text() == "1000\n"
        assert (root / "out/jupyter.arguments").read_text() == "lab --port=8888\n"
        assert "AUTHORIZED_KEYS" not in serving.environment()
        assert serving.environment()["JUPYTER_TOKEN"] == "t"
        config = sshd_config(root)
        assert config["Port"] == "22" and config["PasswordAuthentication"] == "no"
        assert Path(f"{root.path}{config['AuthorizedKeysFile']}").read_text() == f"{mine}\n"
        assert serving.stop() == 143
    assert "SSH on port 22 for user, keys: 1, host key SHA256:" in serving.log
    assert "/dev/shm" not in serving.log


def test_a_server_that_dies_ends_the_container_with_its_status(root: ScratchRoot):
    (root / "opt/torchlock/bin/jupyter").write_text("#!/bin/sh\nexit 7\n")
    code, said = root.run(ENTRYPOINT)
    assert code == 7 and "a server ended with status 7" in said


@pytest.mark.parametrize(("user", "taken"), [("0:0", "22"), ("1000:1000", "2222")])
def test_a_port_that_the_user_may_not_have_is_replaced(
    root: ScratchRoot, mine: str, user: str, taken: str
):
    with ssh(root, mine, user=user) as serving:
        assert sshd_config(root)["Port"] == taken
    said = "port 22: Permission denied. SSH takes 2222: publish that, -p 2222:2222"
    assert (said in serving.log) == (taken == "2222")
    assert f"SSH on port {taken} for user" in serving.log


def test_a_port_in_use_costs_ssh_and_nothing_else(root: ScratchRoot, mine: str):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        more = {"TORCHLOCK_SSH_PORT": port, "AUTHORIZED_KEYS": mine}
        with root.serving(ssh=False, network=True, **more) as serving:
            assert not (root / "run/torchlock/ssh_port").exists()
    assert f"no SSH: port {port}: Address already in use. Name another with" in serving.log


def test_what_sshd_refuses_costs_ssh_and_nothing_else(root: ScratchRoot, mine: str):
    stub = (root / "usr/sbin/sshd").read_text().replace("/out/sshd.refuses", "/usr/sbin/sshd")
    (root / "usr/sbin/sshd").write_text(stub)
    with root.serving(ssh=False, AUTHORIZED_KEYS=mine) as serving:
        assert not (root / "out/sshd").exists()
    assert "no SSH: Bad configuration option" in serving.log


@pytest.mark.parametrize("value", ["tcp://10.0.0.7:22", "0", "65536", "22 ", "-1", "a[$(id)]"])
def test_a_port_that_is_none_is_said(root: ScratchRoot, mine: str, value: str):
    more = {"TORCHLOCK_SSH_PORT": value, "TORCHLOCK_JUPYTER_PORT": value}
    with ssh(root, mine, **more) as serving:
        assert sshd_config(root)["Port"] == "22"
        assert (root / "out/jupyter.arguments").read_text() == "lab --port=8888\n"
    assert f"TORCHLOCK_SSH_PORT={value} is no port: 22 is taken" in serving.log
    assert f"TORCHLOCK_JUPYTER_PORT={value} is no port: 8888 is taken" in serving.log


def test_sessions_get_the_environment_whatever_is_in_it(root: ScratchRoot, mine: str):
    given = {
        "JSON": '{"a": "b"}', "WIN": "C:\\x\\", "HASH": "a # b", "EMPTY": "", "SPACES": "  a  ",
        "LATIN": "Ä €", "DOLLAR": "$HOME `id`", "PERCENT": "%h%u", "EQUALS": "a=b", "TICK": "it's",
    }  # fmt: skip
    with ssh(root, mine, **given, LINES_OF_IT="a\nb") as serving:
        seen = session(root)
    assert {name: seen.get(name) for name in given} == given
    assert seen["TORCHLOCK_PATH"] == seen["PATH"]
    assert not seen.keys() & {"LINES_OF_IT", "AUTHORIZED_KEYS", "USER", "PWD"}
    assert "variables missing in SSH sessions, 1 (of several lines, or too many" in serving.log
    assert "LINES_OF_IT" in serving.log


def test_service_links_make_room_for_what_somebody_set(root: ScratchRoot, mine: str):
    """A pod's environment in a namespace of 150 Services: sshd dies of 1000 variables."""
    links = {}
    for n in range(150):
        name, address = f"APP_{n}", f"tcp://10.0.0.{n}:80"
        links |= {
            f"{name}_SERVICE_HOST": "h", f"{name}_SERVICE_PORT": "80", f"{name}_PORT": address,
            f"{name}_SERVICE_PORT_HTTP": "80", f"{name}_PORT_80_TCP": address,
            f"{name}_PORT_80_TCP_PROTO": "tcp", f"{name}_PORT_80_TCP_ADDR": "10.0.0.1",
        }  # fmt: skip
    own = {f"ZZ_{n}": "x" for n in range(50)}
    with ssh(root, mine, **links, **own) as serving:
        seen = session(root)
    assert own.keys() <= seen.keys() and 850 < len(seen) < 910
    assert re.search(r"missing in SSH sessions, \d{3} \(.*: \w+( \w+){4} \.\.\.", serving.log)


def test_the_environment_stays_below_what_sshd_can_pass_on(root: ScratchRoot, mine: str):
    """Each start of a session hands sshd's configuration on; 256 kB is where that ends."""
    with ssh(root, mine, **{f"LONG_{n}": "\\" * 50_000 for n in range(3)}) as serving:
        assert (root / "out/sshd_config").stat().st_size < 256 * 1024
        assert len([name for name in session(root) if name.startswith("LONG_")]) == 1
    assert "missing in SSH sessions, 2 (" in serving.log


def test_on_a_read_only_root_sessions_have_a_home(root: ScratchRoot, mine: str):
    root.read_only += ["/home/user", "/run"]
    with ssh(root, mine) as serving:
        assert session(root)["HOME"] == serving.environment()["HOME"] == "/tmp/home-1000"
        assert (root / "tmp/home-1000").stat().st_uid == 1000


def test_root_that_cannot_become_the_user_says_what_to_type(root: ScratchRoot):
    code, said = root.run(ENTRYPOINT, before=NO_CAPABILITIES)
    assert (
        code == 2 and "start the container with --user 1000 (Kubernetes: runAsUser: 1000)" in said
    )


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_without_a_key_it_is_said_how_to_give_one(root: ScratchRoot, user: str):
    with root.serving(ssh=False, user=user) as serving:
        pass
    assert "no SSH: no key is authorised. Give one with -e AUTHORIZED_KEYS=" in serving.log


@pytest.mark.parametrize("user", ["12345:0", "777:0"])  # known to /etc/passwd, and not
def test_another_user_gets_jupyterlab_alone(root: ScratchRoot, mine: str, user: str):
    with root.serving(ssh=False, user=user, AUTHORIZED_KEYS=mine) as serving:
        assert (root / "out/jupyter.uid").read_text() == f"{user[:-2]}\n"
    assert f"no SSH: user {user[:-2]} is not `user`" in serving.log


def test_keys_are_told_from_what_is_none(root: ScratchRoot, keys: Path, mine: str):
    other = (keys / "other.pub").read_text().strip()
    options = 'from="127.0.0.1",command="echo \\"a b\\"" ' + other
    given = f"\ufeff# of mine\r\n{mine}\r\n\n   \n{options}\r\nssh-ed25519 AAAA cut off\n"
    with ssh(root, given) as serving:
        written = (root / "run/torchlock/authorized_keys").read_text()
    assert written == f"{mine}\n{options}\n"
    assert "AUTHORIZED_KEYS: lines that are no public key are left out, 1 of them\n" in serving.log
    assert "keys: 2" in serving.log


def test_a_path_or_a_private_key_is_no_key(root: ScratchRoot, keys: Path):
    private = (keys / "mine").read_text()
    (root / "etc/ssh/authorized_keys").write_text(private)
    with root.serving(ssh=False, AUTHORIZED_KEYS="/home/me/.ssh/id_ed25519.pub") as serving:
        pass
    assert "1 of them (a path: give what the file holds)" in serving.log
    assert "/etc/ssh/authorized_keys: lines that are no public key" in serving.log
    assert "(a private key: keep it to yourself" in serving.log
    assert "no SSH: no key is authorised" in serving.log
    assert not set(private.splitlines()) & set(serving.log.splitlines())


def test_keys_come_from_all_places_at_once(root: ScratchRoot, keys: Path, mine: str):
    other = (keys / "other.pub").read_text().strip()
    root.directory("home/user/.ssh", 0o700, (1000, 1000))
    (root / "home/user/.ssh/authorized_keys").write_text(other)  # no newline at its end
    root.directory("run/secrets")
    (root / "run/secrets/authorized_keys").write_text(f"{mine}\n")
    with ssh(root, ""):
        assert (root / "run/torchlock/authorized_keys").read_text() == f"{mine}\n{other}\n"


def test_a_key_file_that_cannot_be_read_is_named(root: ScratchRoot, mine: str):
    (root / "etc/ssh/authorized_keys").write_text(mine)
    (root / "etc/ssh/authorized_keys").chmod(0o600)
    root.directory("home/user/.ssh", 0o700)
    with root.serving(ssh=False, user="1000:1000") as serving:
        pass
    for path in ("/etc/ssh/authorized_keys", "/home/user/.ssh/authorized_keys"):
        assert f"{path} cannot be read by user 1000" in serving.log


def test_a_directory_in_place_of_a_key_file_is_said(root: ScratchRoot):
    root.directory("etc/ssh/authorized_keys")
    with root.serving(ssh=False) as serving:
        pass
    assert "/etc/ssh/authorized_keys is a directory, not a file" in serving.log


HOST_KEY = "etc/ssh/host_keys/ssh_host_ed25519_key"


def fingerprint(serving: Serving) -> str:
    [found] = re.findall(r"host key (SHA256:\S+)", serving.log)
    return found


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_a_volume_keeps_the_host_key(root: ScratchRoot, mine: str, user: str):
    root.volumes.append("/etc/ssh/host_keys")
    seen = []
    for _ in range(2):
        with ssh(root, mine, user=user) as serving:
            assert (root / HOST_KEY).stat().st_mode & 0o777 == 0o600
        seen.append(fingerprint(serving))
        assert "is not kept" not in serving.log
        for state in ("run/torchlock", "tmp/torchlock-1000"):  # what another container has not
            (root / state / "ssh_host_ed25519_key").unlink(missing_ok=True)
    assert seen[0] == seen[1]


def test_a_host_key_is_taken_as_a_secret_gives_it(root: ScratchRoot, keys: Path, mine: str):
    """Not to be written, its mode too wide for sshd, and without its public half."""
    (root / HOST_KEY).write_text((keys / "other").read_text())
    (root / HOST_KEY).chmod(0o644)
    root.read_only.append("/etc/ssh/host_keys")
    with ssh(root, mine, user="1000:1000") as serving:
        copy = Path(f"{root.path}{sshd_config(root)['HostKey']}")
        assert copy.read_text() == (keys / "other").read_text()
        assert copy.stat().st_mode & 0o777 == 0o600
    expected = subprocess.run(
        ["ssh-keygen", "-lf", keys / "other.pub"], check=True, capture_output=True, text=True
    ).stdout.split()[1]
    assert fingerprint(serving) == expected


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o600, "is no private key without a passphrase"),
        ("", 0o600, "is no private key without a passphrase"),
        ("any", 0o400, "cannot be read by user 1000"),
    ],
)
def test_a_host_key_that_is_none_is_said_and_left(
    root: ScratchRoot, mine: str, content: str, mode: int, said: str
):
    (root / HOST_KEY).write_text(content)
    (root / HOST_KEY).chmod(mode)
    with ssh(root, mine, user="1000:1000" if mode == 0o400 else "0:0") as serving:
        pass
    assert f"/{HOST_KEY} {said}: another host key is made" in serving.log
    assert fingerprint(serving) and (root / HOST_KEY).read_text() == content


def test_a_volume_that_cannot_keep_the_host_key_is_said(root: ScratchRoot, mine: str):
    root.directory("etc/ssh/host_keys", 0o700)
    root.volumes.append("/etc/ssh/host_keys")
    with ssh(root, mine, user="1000:1000") as serving:
        pass
    assert "the host key is not kept: user 1000 cannot write the volume at" in serving.log
    assert "sudo chown 1000 DIRECTORY" in serving.log


@pytest.mark.parametrize("name", ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"])
@pytest.mark.parametrize("target", ["/etc/passwd", "/etc/made"])
def test_root_writes_through_no_link_of_the_user(
    root: ScratchRoot, mine: str, name: str, target: str
):
    (root / "etc/ssh/host_keys" / name).symlink_to(target)
    passwd = (root / "etc/passwd").read_text()
    with ssh(root, mine):
        pass
    assert (root / "etc/passwd").read_text() == passwd
    assert not (root / "etc/made").exists()


def test_groups_that_the_engine_gives_reach_both_servers(root: ScratchRoot, mine: str):
    """44 is a group of the image, 2000 is not; 0, root's own, is not the user's."""
    with ssh(root, mine, groups="0,44,2000"):
        assert (root / "out/jupyter.groups").read_text().split() == ["1000", "44", "2000"]
        assert root.run("id", "-G", "user") == (0, "1000 44 2000\n")


def test_groups_are_said_where_they_cannot_be_given(root: ScratchRoot, mine: str):
    root.read_only.append("/etc")
    with ssh(root, mine, groups="2000") as serving:
        assert (root / "out/jupyter.groups").read_text().split() == ["1000", "2000"]
    assert "SSH sessions lack the group 2000: /etc/group cannot be written" in serving.log


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_an_empty_volume_at_the_workspace_gets_the_notebook(root: ScratchRoot, user: str):
    (root / "workspace/notebooks").rmdir()
    root.directory("workspace", 0o755, (1000, 1000))
    with root.serving(ssh=False, user=user) as serving:
        pass
    assert "cannot be written" not in serving.log
    assert (root / "workspace/notebooks/first.ipynb").stat().st_uid == 1000


def test_little_shared_memory_is_said(root: ScratchRoot):
    root.shm = "64m"
    with root.serving(ssh=False) as serving:
        pass
    assert "/dev/shm has 64 MB, DataLoader workers want more: --shm-size 8g" in serving.log


def test_python_has_somewhere_for_temporary_files(root: ScratchRoot):
    script = "import tempfile; print(tempfile.gettempdir())"
    root.directory("var/tmp", 0o1777)
    for user in ("0:0", "1000:1000"):
        root.read_only = []
        assert root.run(ENTRYPOINT, "python", "-c", script, user=user) == (0, "/tmp\n")
        root.read_only = ["/tmp", "/var", "/home/user"]
        assert root.run(ENTRYPOINT, "python", "-c", script, user=user) == (0, "/dev/shm\n")
    with root.serving(ssh=False, TMPDIR="/not/there") as serving:
        assert serving.environment()["TMPDIR"] == "/dev/shm", "what root and user both may write"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("-c", "x"), 127, "there is no command -c here. This image takes: serve"),
        (("jupiter",), 127, "there is no command jupiter here"),
        (("serve", "--port=1"), 2, "serve takes no arguments: --port=1"),
        (("sh", "-c", "echo it runs; exit 3"), 3, "it runs"),
    ],
)
def test_commands(root: ScratchRoot, command: tuple[str, ...], code: int, said: str):
    got, output = root.run(ENTRYPOINT, *command)
    assert got == code and said in output and "line " not in output


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Answer each request with a status; give the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/api" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


@contextmanager
def process(*arguments: str) -> Iterator[int]:
    """Give the PID of a process that has `arguments` and does nothing."""
    command = [sys.executable, "-c", "import time; time.sleep(1000)", *arguments]
    with subprocess.Popen(command) as started:
        try:
            yield started.pid
        finally:
            started.terminate()


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_health_asks_what_was_started(root: ScratchRoot, user: str):
    state = root.directory("run/torchlock" if user == "0:0" else "tmp/torchlock-1000")

    def health() -> int:
        return root.run(HEALTH, user=user, network=True)[0]

    with (
        process(ENTRYPOINT, "serve") as pid,
        socket.socket() as closed,
        answering(200) as good,
        answering(500) as bad,
    ):
        (state / "pid").write_text(f"{pid}\n")
        assert health() != 0, "the servers are still to be started"
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()[1]
        for jupyter, ssh_port, healthy in (
            (good, None, True), (good, good, True), (good, nobody, False), (bad, None, False),
            (nobody, None, False),
        ):  # fmt: skip
            (state / "jupyter_port").write_text(f"{jupyter}\n")
            (state / "ssh_port").write_text(f"{ssh_port}\n" if ssh_port else "")
            assert (health() == 0) == healthy, (jupyter, ssh_port)


def test_where_no_servers_run_there_is_nothing_to_ask(root: ScratchRoot):
    assert root.run(HEALTH) == (0, "")
    # What is left in an image that was made of a serving container: PIDs are somebody else's.
    state = root.directory("run/torchlock")
    (state / "jupyter_port").write_text("9\n")
    with process("python", f"{ENTRYPOINT}.py", "serve") as pid:
        (state / "pid").write_text(f"{pid}\n")
        assert root.run(HEALTH) == (0, "")
    assert root.run(HEALTH) == (0, ""), "and of nobody"


def test_health_finds_the_ports_of_a_running_entry_point(root: ScratchRoot, mine: str):
    with answering(200) as jupyter, answering(404) as other, socket.create_server(("", 0)) as free:
        ssh_port = free.getsockname()[1]
        free.close()
        ports = {"TORCHLOCK_SSH_PORT": str(ssh_port), "TORCHLOCK_JUPYTER_PORT": str(jupyter)}
        with ssh(root, mine, network=True, **ports):
            assert root.run(HEALTH, network=True)[0] != 0, "sshd's stub does not listen"
        # A restart without a key: what the last start left does not count.
        with root.serving(ssh=False, network=True, TORCHLOCK_JUPYTER_PORT=str(jupyter)):
            assert root.run(HEALTH, network=True) == (0, "")
        with root.serving(ssh=False, network=True, TORCHLOCK_JUPYTER_PORT=str(other)):
            assert root.run(HEALTH, network=True)[0] == 1
