package show

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/status"
)

// A Column of a table shows one thing about each row. The zarf-registry status command and its web page render all
// columns.
type Column[Row any] struct {
	Name string
	// Help says what the column shows, for the command's help. It is empty if the name does.
	Help string
	Cell func(Row) string
}

// NodeColumns are the columns of the nodes.
var NodeColumns = []Column[status.Node]{
	{Name: "Node", Cell: func(n status.Node) string { return n.Name }},
	{Name: "Ready", Cell: func(n status.Node) string { return YesNo(n.Ready) }},
	{"Via", "the path that a node uses", func(n status.Node) string { return n.Via }},
	{"Endpoint", "whether that path exists", func(n status.Node) string { return YesNo(n.Endpoint) }},
	{"Verified", "whether the node pulled in the last verification",
		func(n status.Node) string { return YesNo(n.Verified) }},
	{Name: "Message", Cell: func(n status.Node) string { return n.Message }},
}

// NodeConfigColumns are the columns of the nodes whose container runtime is configured.
var NodeConfigColumns = []Column[status.NodeConfig]{
	{Name: "Node", Cell: func(n status.NodeConfig) string { return n.Node }},
	{"Files", "how many configuration files the release keeps on a node", files},
	{"Written", "when the newest was written", written},
	{"Effect", "whether the container runtime uses them", func(n status.NodeConfig) string { return string(n.Effect) }},
	{Name: "Message", Cell: messages},
}

// Table is the text of a table.
type Table struct {
	Columns []string
	Rows    [][]string
}

func newTable[Row any](columns []Column[Row], rows []Row) Table {
	var t Table
	for _, c := range columns {
		t.Columns = append(t.Columns, c.Name)
	}
	for _, row := range rows {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.Cell(row))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// Nodes returns the table of the nodes.
func Nodes(r *status.Report) Table { return newTable(NodeColumns, r.Nodes) }

// NodeConfig returns the table of the nodes whose container runtime is configured.
func NodeConfig(r *status.Report) Table { return newTable(NodeConfigColumns, r.NodeConfig) }

// ColumnHelp explains the columns of a table whose names do not, each in a line.
func ColumnHelp[Row any](columns []Column[Row]) string {
	var lines strings.Builder
	for _, c := range columns {
		if c.Help != "" {
			fmt.Fprintf(&lines, "\n  %-9s %s", strings.ToUpper(c.Name), c.Help)
		}
	}
	return lines.String()
}

// files counts the configuration files on a node, and those restored or removed.
func files(n status.NodeConfig) string {
	line := strconv.Itoa(n.Written + n.Unchanged)
	if n.Restored > 0 {
		line += fmt.Sprintf(", %d restored", n.Restored)
	}
	if n.Removed > 0 {
		line += fmt.Sprintf(", %d removed", n.Removed)
	}
	return line
}

func written(n status.NodeConfig) string {
	if n.WrittenAt.IsZero() {
		return "-"
	}
	return n.WrittenAt.UTC().Format(time.RFC3339)
}

// messages are those about a node's configuration: errors first, and one of several warnings.
func messages(n status.NodeConfig) string {
	var messages []string
	for _, message := range []string{n.Error, n.Restart, n.Message} {
		if message != "" {
			messages = append(messages, message)
		}
	}
	switch w := n.Warnings; len(w) {
	case 0:
	case 1:
		messages = append(messages, "warning: "+w[0])
	default:
		messages = append(messages, fmt.Sprintf("%d warnings, first: %s", len(w), w[0]))
	}
	return strings.Join(messages, "; ")
}

// YesNo returns yes or no.
func YesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
