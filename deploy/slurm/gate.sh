# Shared by prolog.sh, epilog.sh and healthcheck.sh: settings, the state file and the log of decisions.
# POSIX sh, builtins only: the whole prolog of a healthy job starts no other program.
#
# shellcheck shell=sh disable=SC2034,SC2154  # scripts that read this file use what is set here, and set what is used

# SLURM sets neither PATH nor HOME. No name is globbed: words of the state file and of gres.conf hold brackets.
PATH=/usr/bin:/bin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
set -f
umask 022

is_number() {
    case $1 in '' | *[!0-9]* | ????????????*) return 1 ;; esac
}

# Take the settings of gate.conf, which lies beside the scripts. It is read, never executed: a slip of the pen in it
# costs a default and a word in the log, not the node. It ends at a line of its own, because a shell reads byte by byte
# and explanations would cost as much as the verdict.
read_settings() {
    runtime_dir=/run/nodevet on_stale=pass mode=gate gpus=auto
    probe_wait_seconds=5 drain_wait_seconds=4 boot_wait_seconds=45 boot_window_seconds=600 slip=
    if [ -r "$1" ]; then
        while read -r setting || [ -n "$setting" ]; do
            value=${setting#*=}
            case $setting in
            '# end of settings') break ;;
            '' | '#'*) ;;
            runtime_dir=/*) runtime_dir=$value ;;
            on_stale=pass | on_stale=fail) on_stale=$value ;;
            mode=gate | mode=observe) mode=$value ;;
            gpus=auto | gpus=pci | gpus=minor | gpus=all | gpus=[0-9]*) gpus=$value ;;
            probe_wait_seconds=[0-9]*) is_number "$value" && probe_wait_seconds=$value || slip=$setting ;;
            drain_wait_seconds=[0-9]*) is_number "$value" && drain_wait_seconds=$value || slip=$setting ;;
            boot_wait_seconds=[0-9]*) is_number "$value" && boot_wait_seconds=$value || slip=$setting ;;
            boot_window_seconds=[0-9]*) is_number "$value" && boot_window_seconds=$value || slip=$setting ;;
            *) slip=$setting ;;
            esac
        done <"$1"
    fi
    state_file=$runtime_dir/state
    claims=$runtime_dir/claims
}

# Seconds since boot, whole and in hundredths.
read_uptime() {
    uptime=0.00
    read -r uptime rest </proc/uptime
    seconds=${uptime%.*}
    hundredths=${seconds}${uptime#*.}
}

# Append one line to the log of decisions, which the agent counts: DECISION UPTIME JOB WORDS. What cannot be logged
# is not worth a node: a full disk or a missing directory is passed over.
log_decision() {
    # The agent moves a long log aside; where there is no agent it must not fill the disk (4 MiB in blocks of 512).
    trap '' XFSZ
    ulimit -f 8192 2>/dev/null
    if [ -d "$runtime_dir" ] && [ ! -L "$runtime_dir/gate.log" ]; then
        { printf '%s %s %s %s\n' "$1" "$uptime" "${job:--}" "$2" >>"$runtime_dir/gate.log"; } 2>/dev/null
    fi
}

# Read the state file as the job of this prolog must see it; the job's GPUs are in $wanted (see wanted_gpus).
# Status 0: read. Then `fault` names the first hard fault that the job would meet, `doubt` the first thing that is
# unknown about its parts, and `load` is `probing` while a load of the agent's runs. Status 1: no verdict; `doubt` says why.
read_verdict() {
    fault='' doubt='' any_hard='' load=idle agent='' missing=$wanted place=0 lines=0 ended=
    [ "$wanted" != all ] || missing=
    if [ ! -e "$state_file" ] && [ ! -L "$state_file" ]; then
        doubt="$state_file does not exist: is nodevet agent running?"
        return 1
    fi
    if [ -L "$state_file" ] || [ ! -f "$state_file" ]; then
        doubt="$state_file is no regular file"
        return 1
    fi
    if [ ! -O "$state_file" ]; then
        doubt="$state_file belongs to another user"
        return 1
    fi
    # One open file from the first line to the last: the agent replaces the file, never its content.
    if ! read_lines <"$state_file"; then
        doubt=${doubt:-"$state_file cannot be read"}
        return 1
    fi
    if [ "$ended" != yes ]; then
        doubt="$state_file is malformed: its end is missing"
        return 1
    fi
    # A fault that no line carries is the node's own.
    if [ "$node_verdict $node_hard" = "failed hard" ] && [ -z "$any_hard" ]; then
        fault=$node_reason
    fi
    case $missing in *[!\ ]*) doubt=${doubt:-"$state_file has no line for GPU$missing"} ;; esac
    [ "$seconds" -lt "$fresh" ] || doubt=${doubt:-"$state_file expired: is nodevet agent running?"}
    return 0
}

# Take in the lines on standard input. Status 1 where they say nothing about this boot.
read_lines() {
    read -r node_verdict expires generation node_reason &&
        read -r form boot origin agent load node_hard action fresh name
    lines=2
    if [ "${form:-}" != nodevet-state/1 ]; then
        doubt="$state_file is malformed or of another version"
        return 1
    fi
    read -r this_boot </proc/sys/kernel/random/boot_id
    if [ "$boot" != "$this_boot" ]; then
        doubt="$state_file is of another boot"
        return 1
    fi
    if [ "$origin" != real ]; then
        doubt="$state_file is of a simulated node, which never gates"
        return 1
    fi
    if ! is_number "$expires" || ! is_number "$fresh"; then
        doubt="$state_file is malformed: line 1 or 2 has no number"
        return 1
    fi
    read_uptime
    if [ "$seconds" -ge "$expires" ]; then
        doubt="$state_file expired $((seconds - expires)) s ago: is nodevet agent running?"
        return 1
    fi
    while [ "$lines" -lt 1000 ] && read -r kind pci minor verdict hard action id reason; do
        if [ "$kind" = end ]; then
            [ "$pci" = "$lines" ] && ended=yes
            break
        fi
        lines=$((lines + 1))
        take_line
    done
    return 0
}

# Take in the line of one device; the job meets every part of the node that is not another job's GPU.
take_line() {
    if [ "$kind" = accelerator ]; then
        number=$minor
        if [ "$order" = pci ]; then
            number=$place
            [ "$pci" = - ] || place=$((place + 1))
        fi
        [ "$verdict $hard" != "failed hard" ] || any_hard=yes
        case $wanted in
        all | *" $number "*) ;;
        *)
            # A GPU that no number leads to may be anybody's.
            [ "$wanted" != ' ' ] && [ "$number" = - ] && [ "$verdict $hard" = "failed hard" ] || return 0
            ;;
        esac
        case $missing in *" $number "*) missing="${missing%%" $number "*} ${missing#*" $number "}" ;; esac
    fi
    if [ "$verdict $hard" = "failed hard" ]; then
        any_hard=yes
        where="$kind $pci"
        [ "$kind" != node ] || where=node
        fault=${fault:-"$where: $reason"}
    elif [ "$verdict" = unknown ]; then
        # A disk or a network card that no check speaks of is unknown as well, and nothing hangs on it.
        case $kind in node | accelerator) doubt=${doubt:-"$kind $pci is unknown: $reason"} ;; esac
    fi
}
