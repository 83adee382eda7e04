"""JupyterLab in the container; the token is Jupyter's own, new at every start."""

c = get_config()  # noqa: F821 - Jupyter provides it
c.ServerApp.ip = "0.0.0.0"
c.ServerApp.open_browser = False
c.ServerApp.root_dir = "/workspace"
c.ServerApp.port_retries = 0
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash", "-l"]}
