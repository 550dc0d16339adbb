# Runs a command as on a host of a testbed, in the manner of ssh: sh enter.sh PREFIX HOME HOST COMMAND...
# The host is the network namespace PREFIX + HOST. It bears that name and knows the names in HOME/hosts. Where there is
# a folder HOME/memory, the host has shared memory of its own, which is kept beside everybody's.
space=$1$3
export MESHMEND_CHIP=
case $3 in
chip-*-*)
    place=${3#chip-}
    MESHMEND_CHIP=$(echo "$place" | tr - ,)
    export MESHMEND_LINKS=north,east,south,west
    case $place in *-*-*) MESHMEND_LINKS=$MESHMEND_LINKS,front,back ;; esac
    ;;
esac
shift
exec ip netns exec "$space" unshare --uts sh -c '
home=$1 host=$2 whole=$1/memory
own=$whole/${home##*/}/$host
hostname "$host" && mount --bind "$home/hosts" /etc/hosts || exit
if test -d "$whole"; then
    test -d "$own" || mount --rbind /dev/shm "$whole" || exit # else we are on a host already
    mount --bind "$own" /dev/shm || exit
fi
shift 2
exec sh -c "$*"' sh "$@"
