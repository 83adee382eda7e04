# Debian's /etc/profile sets PATH anew in login shells; put the container's own back.
PATH="${TORCHLOCK_PATH:-/opt/torchlock/bin:$PATH}"
export PATH
