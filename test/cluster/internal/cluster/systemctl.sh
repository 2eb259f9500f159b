#!/bin/sh
# systemctl, as far as kubeadm needs it on a node of a cluster that it makes: for the unit kubelet of its packages.
# "systemctl run" is that unit.
config=/var/lib/kubelet/config.yaml
stopped=/run/kubelet.stopped
pid=/run/kubelet.pid

quit() {
	[ -e $pid ] || return 0
	kill "$(cat $pid)"
	for _ in $(seq 300); do
		[ -e $pid ] || return 0
		sleep 0.1
	done
	kill -KILL "$(cat $pid)"
}

case $1 in
daemon-reload) exit ;;
run)
	rm -f $pid $stopped
	while :; do
		# The real unit starts a kubelet, which ends at once, until kubeadm has written its configuration.
		if [ -e $config ] && [ ! -e $stopped ]; then
			KUBELET_KUBEADM_ARGS=
			. /var/lib/kubelet/kubeadm-flags.env
			setpriv --pdeathsig KILL kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
				--kubeconfig=/etc/kubernetes/kubelet.conf --config=$config $KUBELET_KUBEADM_ARGS &
			echo $! >$pid
			wait
			rm -f $pid
		fi
		sleep 1
	done
	;;
esac
if [ "${2%.service}" != kubelet ]; then
	echo "Unit $2 could not be found."
	exit 4
fi
case $1 in
start) rm -f $stopped ;;
stop) touch $stopped && quit ;;
restart) rm -f $stopped && quit ;;
is-active) [ -e $stopped ] || echo active ;;
is-enabled | status) ;;
*) echo "systemctl $1: not known here" >&2; exit 1 ;;
esac
