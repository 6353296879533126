# Shared by prolog.sh: which lines of the state file are the GPUs of a job.
#
# SLURM names a job's GPUs by their place in its own list (SLURM_JOB_GPUS=0,1), and the state file by the number of
# their device node. The list has the order of the File= values in gres.conf, as long as all are of one type: types stand
# in the order of Gres= in slurm.conf (_merge_config in gres.c), which is not read here. What AutoDetect finds it has in the
# order of the PCI addresses (nvml, rsmi, oneapi), or of the device nodes (nvidia, since SLURM 24.11: gpu_nvidia.c tells no
# links, by which gres_gpu.c sorts first), whatever the types. Where neither can be told, every GPU of the node counts for
# every job: a job may then wait for a GPU that it would not have got, but never start on one that is known to be broken.
#
# shellcheck shell=sh disable=SC2034,SC2154  # gate.sh and prolog.sh use what is set here, and set what is used

# Set $wanted to the numbers of the job's GPUs with a space on either side, ' ' for none or `all`, and $order to what
# the numbers are: `minor` or the place by `pci` address. $1 is SLURM_JOB_GPUS, $2 gres.conf, $3 the name of the node.
wanted_gpus() {
    wanted=all order=minor files=
    case $gpus in
    all) return ;;
    auto) read_gres "$2" "$3" ;;
    pci) order=pci ;;
    minor) ;;
    *) files=$gpus ;;
    esac
    [ "$order" != unknown ] || return 0
    if [ -z "$1" ]; then
        wanted=' '
        return
    fi
    [ "${#1}" -lt 4096 ] || return 0
    case $1 in *[!0-9,]*) return ;; esac
    numbers=' '
    IFS=,
    for index in $1; do
        IFS=' '
        is_number "$index" || return 0
        if [ -n "$files" ]; then
            nth "$index" || return 0
            index=$number
        fi
        numbers="$numbers$index "
    done
    unset IFS
    wanted=$numbers
}

# Set $number to the word of $files at place $1; status 1 where there are not so many.
nth() {
    place=$1
    for number in $files; do
        [ "$place" -gt 0 ] || return 0
        place=$((place - 1))
    done
    return 1
}

# Read gres.conf ($1) as far as it speaks of the GPUs of node $2: $files are the numbers of their device nodes in
# SLURM's order; $order is `pci` or `minor` where AutoDetect finds them, `unknown` where the order cannot be told.
read_gres() {
    order=unknown detect='' doubtful='' types=''
    [ -r "$1" ] || return 0
    # Without -r: a backslash continues a line.
    # shellcheck disable=SC2162
    while read line || [ -n "$line" ]; do
        read_gres_line "$2" "${line%%#*}"
    done <"$1"
    [ -z "$doubtful" ] || return 0
    case "$detect ${files:+listed}" in
    'pci ') has_slices || order=pci ;;
    'minor ' | ' listed') order=minor ;;
    esac
}

# Status 0 where a board is cut into slices (MIG): AutoDetect counts each as a GPU, and the state file has whole boards.
has_slices() {
    set +f
    set -- /proc/driver/nvidia/capabilities/gpu*/mig/gi*
    set -f
    [ -e "$1" ]
}

read_gres_line() {
    node=$1 name=gpu type=none file=
    # shellcheck disable=SC2086
    set -- $2
    for word; do
        value=${word#*=}
        case $word in
        # SLURM allows blanks there, and then this may be a line of another node, or name other devices.
        =* | *=) doubtful=yes ;;
        [Nn][Oo][Dd][Ee][Nn][Aa][Mm][Ee]=*) is_node "$value" "$node" || return 0 ;;
        [Nn][Aa][Mm][Ee]=*) name=$value ;;
        [Ff][Ii][Ll][Ee]=*) file=$value ;;
        [Tt][Yy][Pp][Ee]=*) type=$value ;;
        [Mm][Uu][Ll][Tt][Ii][Pp][Ll][Ee]*=*) doubtful=yes ;;
        [Aa][Uu][Tt][Oo][Dd]*=[Oo][Ff][Ff]) ;;
        [Aa][Uu][Tt][Oo][Dd]*=*) detects "$value" ;;
        [Ii][Nn][Cc][Ll][Uu][Dd][Ee]) doubtful=yes ;;
        esac
    done
    [ "$name" = gpu ] || return 0
    [ -z "$file" ] || [ "${types:=$type}" = "$type" ] || doubtful=yes
    # Several files are separated by commas, as numbers within brackets are.
    while [ -n "$file" ]; do
        path=${file%%,/*}
        read_device "${path##*/}"
        [ "$path" != "$file" ] || return 0
        file=/${file#*,/}
    done
}

# Take in how AutoDetect ($1) orders what it finds; where a line of the node differs from that of all, it is not told.
detects() {
    case $1 in
    *[Nn][Vv][Mm][Ll]* | *[Rr][Ss][Mm][Ii]* | *[Oo][Nn][Ee][Aa][Pp][Ii]*) found=pci ;;
    *[Nn][Vv][Ii][Dd][Ii][Aa]*) found=minor ;;
    *) found=unknown ;;
    esac
    [ "${detect:-$found}" = "$found" ] || found=unknown
    detect=$found
}

# Take in the name of device nodes $1, such as nvidia3 or renderD[128-135].
read_device() {
    device=$1
    case $device in
    nvidia[0-9]* | renderD[0-9]* | nvidia\[*\] | renderD\[*\])
        device=${device#nvidia}
        device=${device#renderD}
        device=${device#\[}
        expand "${device%\]}" || doubtful=yes
        files="$files$expanded"
        ;;
    *) doubtful=yes ;;
    esac
}

# Status 0 where $2 is one of the nodes that $1 (such as n[1-3]) stands for. What it cannot tell makes all doubtful.
is_node() {
    [ "$1" != "$2" ] || return 0
    case $1 in
    *\[*\]) ;;
    *[],]*)
        doubtful=yes
        return 1
        ;;
    *) return 1 ;;
    esac
    head=${1%%\[*} list=${1#*\[}
    list=${list%\]}
    case $head$list in *[!0-9A-Za-z,._-]*) doubtful=yes && return 1 ;; esac
    case $head in *,*) doubtful=yes && return 1 ;; esac
    own=${2#"$head"}
    [ "$own" != "$2" ] && is_number "$own" && expand "$list" || return 1
    plain "$own"
    case " $expanded " in *" $plain "*) return 0 ;; esac
    return 1
}

# Set $expanded to the numbers that $1 (such as 0-3,5) stands for, each with a space behind it.
expand() {
    expanded=
    rest=$1,
    while [ -n "$rest" ]; do
        range=${rest%%,*} rest=${rest#*,}
        is_number "${range%%-*}" && is_number "${range#*-}" || return 1
        plain "${range#*-}"
        last=$plain
        plain "${range%%-*}"
        [ "$((last - plain))" -lt 4096 ] || return 1
        while [ "$plain" -le "$last" ]; do
            expanded="$expanded$plain "
            plain=$((plain + 1))
        done
    done
}

# Set $plain to the number $1 without leading zeros, which arithmetic would read as octal.
plain() {
    plain=$1
    while :; do
        case $plain in 0?*) plain=${plain#0} ;; *) return ;; esac
    done
}
