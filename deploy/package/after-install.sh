#!/bin/sh
# The daemon is neither enabled nor started: it has no database yet.
set -e
if ! getent passwd drainer >/dev/null; then
  useradd --system --user-group --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin drainer
fi
chown root:drainer /etc/drainer/drainer.yaml
chmod 640 /etc/drainer/drainer.yaml
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart drainer.service
fi
