package nodes

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
)

// maxQuoted limits how much of a termination message is quoted, because several nodes may fail.
const maxQuoted = 1000

// nodePod is a pod that writes files on its node, with the result that it reports.
type nodePod struct {
	corev1.Pod
	// done is true if the init containers succeeded.
	done bool
	// report is what the init container reported. It is empty if there is no report.
	report noderuntime.Report
	// began is when the init container started, by the node's clock.
	began metav1.Time
	// failed is why the last attempt failed, with exit code exit. It is "" if none failed.
	failed string
	exit   int32
}

func readNodePod(pod corev1.Pod) nodePod {
	statuses := pod.Status.InitContainerStatuses
	n := nodePod{Pod: pod, done: len(statuses) > 0}
	for _, c := range statuses {
		n.done = n.done && c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
	}
	for _, c := range statuses {
		ended := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
		if ended == nil {
			continue
		}
		report, err := noderuntime.ParseReport(ended.Message)
		isReport := err == nil // else it comes from the loader, or is the end of a log
		if isReport {
			n.report, n.began = report, ended.StartedAt
		}
		if ended.ExitCode != 0 && !n.done && n.failed == "" {
			n.exit = ended.ExitCode
			n.failed = fmt.Sprintf("container %s exited with code %d: %s", c.Name, ended.ExitCode,
				cmp.Or(terminationProblem(ended.Message, report, isReport), "no message"))
		}
	}
	return n
}

// terminationProblem returns the problem in a termination message as one line: the error of a report, or else the
// end of the message, where logs have their errors.
func terminationProblem(message string, report noderuntime.Report, isReport bool) string {
	if isReport {
		message = report.Error
	}
	text := strings.ReplaceAll(strings.TrimSpace(message), "\n", " ")
	switch {
	case len(text) <= maxQuoted:
		return text
	case isReport:
		return strings.ToValidUTF8(text[:maxQuoted], "") + " …"
	}
	return "… " + strings.ToValidUTF8(text[len(text)-maxQuoted:], "")
}
