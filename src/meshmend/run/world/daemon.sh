# sh daemon.sh PYTHON NETWORK prted …: starts a daemon of mpirun on this host, and keeps what it listens on to a network.
# The daemon does not wait for Python to start; the parent that it then has may narrow its sockets, and waits for it.
python=$1 network=$2
shift 2
"$@" &
exec "$python" -P -m meshmend.base.sockets $! "$network"
