// Package clients lists the programs that people use with the registry, its entry points, and what each program can do
// there: the table of docs/reference/clients.md. TestClients in test/e2e does it.
package clients

import (
	"fmt"
	"strings"
)

// Transport is how clients connect.
type Transport int

const (
	PlainHTTP Transport = iota
	ServerTLS           // with a certificate that clients trust
	MutualTLS           // and with one of the client
)

// Entry is an entry point of the registry, as clients see it.
type Entry struct {
	Title     string // of its column in docs/reference/clients.md
	Transport Transport
	Anonymous bool // clients without a credential may read
	ReadOnly  bool // for everyone
	Short     bool // make e2e covers it, too
}

var (
	NodeProxy       = Entry{Title: "node, proxy mode", Anonymous: true, ReadOnly: true, Short: true}
	NodePort        = Entry{Title: "node, nodeport mode"}
	NodePortOpen    = Entry{Title: "node, nodeport mode, `auth.anonymousPull`", Anonymous: true}
	WithCertificate = Entry{Title: "port 5000, push certificate", Transport: MutualTLS, Anonymous: true}
	ThroughForward  = Entry{Title: "port-forward"}
	Exposed         = Entry{Title: "port 5443", Transport: ServerTLS}
	ExposedOpen     = Entry{Title: "port 5443, `expose.anonymousPull`", Transport: ServerTLS, Anonymous: true, Short: true}

	Entries = []Entry{NodeProxy, NodePort, NodePortOpen, ThroughForward, WithCertificate, Exposed, ExposedOpen}
)

// Operation is what a client does. Its first letter stands for it in docs/reference/clients.md.
type Operation string

const (
	AnonymousPull Operation = "anonymous pull"
	Pull          Operation = "pull"
	Push          Operation = "write"
	List          Operation = "list"
	Remove        Operation = "delete"
)

var operations = []Operation{AnonymousPull, Pull, Push, List, Remove}

// Allows reports whether clients with credentials may do that at an entry point, and, for an anonymous pull,
// those without.
func (e Entry) Allows(o Operation) bool {
	switch o {
	case AnonymousPull:
		return e.Anonymous
	case Push, Remove:
		return !e.ReadOnly
	}
	return true
}

// Program is a client. Its commands are shell scripts with the variables $HOST, $REPOSITORY, $USERNAME and
// $PASSWORD, which are empty without a credential, $TLS (false with plain HTTP), $CERTIFICATE and $KEY with
// mutual TLS, $ARCHIVE, a Docker archive of the image $LOADED, and $KEYS, cosign's. $HOME is a folder for each
// entry point.
type Program struct {
	Name string
	// Setup comes before each command, by transport. Without one for mutual TLS, the client has no option
	// for a certificate.
	Setup [3]string
	// Login is empty if Pull and Push pass the credentials.
	Login string
	// Pull, Push, List and Remove are empty if the client cannot do it.
	Pull, Push, List, Remove string
	// Artifact means that the client pulls nothing but what it has pushed.
	Artifact bool
	Short    bool // make e2e covers it, too
}

// Can reports whether the client has a command for it.
func (p Program) Can(o Operation) bool { return p.Script(o) != "" }

// File is the name in files and repositories.
func (p Program) File() string { return strings.ToLower(strings.ReplaceAll(p.Name, " ", "-")) }

// Script returns the command for an operation.
func (p Program) Script(o Operation) string {
	return map[Operation]string{AnonymousPull: p.Pull, Pull: p.Pull, Push: p.Push, List: p.List, Remove: p.Remove}[o]
}

// Connects reports whether the client can connect that way.
func (p Program) Connects(by Transport) bool { return p.Setup[by] != "" }

// same is a setup without commands, for clients that find certificates in files.
const same = ":"

// All are the clients that people use.
var All = []Program{{
	Name:  "docker",
	Short: true,
	Setup: [3]string{same, same, same},
	Login: `echo "$PASSWORD" | docker login --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:  `docker pull "$HOST/$REPOSITORY:1" && docker rmi "$HOST/$REPOSITORY:1"`,
	Push: `docker load --input "$ARCHIVE" && docker tag "$LOADED" "$HOST/$REPOSITORY:1"
trap 'docker rmi "$LOADED" "$HOST/$REPOSITORY:1"' EXIT
docker push "$HOST/$REPOSITORY:1"`,
}, {
	Name:  "docker build", // BuildKit
	Setup: [3]string{same, same, same},
	Login: `echo "$PASSWORD" | docker login --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:  `echo "FROM $HOST/$REPOSITORY:1" | DOCKER_BUILDKIT=1 docker build --pull --no-cache -`,
}, {
	Name:  "podman",
	Short: true,
	Setup: [3]string{same, same, same},
	Login: `echo "$PASSWORD" | podman login --tls-verify="$TLS" --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:  `podman pull --tls-verify="$TLS" "$HOST/$REPOSITORY:1" && podman rmi "$HOST/$REPOSITORY:1"`,
	Push: `podman load --input "$ARCHIVE"
trap 'podman rmi "$LOADED"' EXIT
podman push --tls-verify="$TLS" "$LOADED" "docker://$HOST/$REPOSITORY:1"`,
	List: `podman search --tls-verify="$TLS" --list-tags "$HOST/$REPOSITORY" | grep ' 1$'`,
}, {
	Name:  "buildah",
	Setup: [3]string{same, same, same},
	Login: `echo "$PASSWORD" | buildah login --tls-verify="$TLS" --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:  `buildah pull --tls-verify="$TLS" "$HOST/$REPOSITORY:1" && buildah rmi "$HOST/$REPOSITORY:1"`,
	Push: `buildah pull "docker-archive:$ARCHIVE"
trap 'buildah rmi "$LOADED"' EXIT
buildah push --tls-verify="$TLS" "$LOADED" "docker://$HOST/$REPOSITORY:1"`,
}, {
	Name:   "skopeo",
	Short:  true,
	Setup:  [3]string{same, same, same},
	Login:  `echo "$PASSWORD" | skopeo login --tls-verify="$TLS" --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:   `skopeo copy --src-tls-verify="$TLS" "docker://$HOST/$REPOSITORY:1" "dir:$(mktemp --directory)"`,
	Push:   `skopeo copy --dest-tls-verify="$TLS" "docker-archive:$ARCHIVE" "docker://$HOST/$REPOSITORY:1"`,
	List:   `skopeo list-tags --tls-verify="$TLS" "docker://$HOST/$REPOSITORY" | grep '"1"'`,
	Remove: `skopeo delete --tls-verify="$TLS" "docker://$HOST/$REPOSITORY:1"`,
}, {
	Name:  "ctr",
	Setup: [3]string{`flags=--plain-http`, same, `flags="--tlscert=$CERTIFICATE --tlskey=$KEY"`},
	Pull: `ctr -n clients images pull --local $flags ${USERNAME:+--user="$USERNAME:$PASSWORD"} "$HOST/$REPOSITORY:1"
ctr -n clients images rm --sync "$HOST/$REPOSITORY:1"`,
	Push: `ctr -n clients images import "$ARCHIVE"
trap 'ctr -n clients images rm --sync "$LOADED"' EXIT
ctr -n clients images push --local $flags ${USERNAME:+--user="$USERNAME:$PASSWORD"} "$HOST/$REPOSITORY:1" "$LOADED"`,
}, {
	Name:  "containerd",
	Setup: [3]string{same, same, same},
	Pull:  criPull("unix:///run/containerd/containerd.sock"),
}, {
	Name:  "CRI-O",
	Setup: [3]string{same, same, same},
	Pull:  criPull("unix:///run/crio/crio.sock"),
}, {
	Name:  "crane",
	Short: true,
	Setup: [3]string{same, same},
	Login: `echo "$PASSWORD" | crane auth login --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:  `crane pull "$HOST/$REPOSITORY:1" /dev/null`,
	Push:  `crane push "$ARCHIVE" "$HOST/$REPOSITORY:1"`,
	List: `crane ls "$HOST/$REPOSITORY" | grep --line-regexp 1
crane catalog "$HOST" | grep --line-regexp "$REPOSITORY"`,
	Remove: `crane delete "$HOST/$REPOSITORY:1"`,
}, {
	Name: "regctl",
	Setup: [3]string{`regctl registry set --skip-check --tls disabled "$HOST"`, same,
		`regctl registry set --skip-check --client-cert "$(cat "$CERTIFICATE")" --client-key "$(cat "$KEY")" "$HOST"`},
	Login: `echo "$PASSWORD" | regctl registry login --user "$USERNAME" --pass-stdin "$HOST"`,
	Pull:  `regctl image copy "$HOST/$REPOSITORY:1" "ocidir://$(mktemp --directory):1"`,
	Push:  `regctl image import "$HOST/$REPOSITORY:1" "$ARCHIVE"`,
	List: `regctl tag ls "$HOST/$REPOSITORY" | grep --line-regexp 1
regctl repo ls "$HOST" | grep --line-regexp "$REPOSITORY"`,
	Remove: `regctl tag delete "$HOST/$REPOSITORY:1"`,
}, {
	Name:     "oras",
	Artifact: true,
	Setup:    [3]string{`flags=--plain-http`, same, `flags="--cert-file=$CERTIFICATE --key-file=$KEY"`},
	Login:    `echo "$PASSWORD" | oras login $flags --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:     `oras pull $flags --output "$(mktemp --directory)" "$HOST/$REPOSITORY:1"`,
	Push:     `cd "$HOME" && date >file && oras push $flags "$HOST/$REPOSITORY:1" file`,
	List: `oras repo tags $flags "$HOST/$REPOSITORY" | grep --line-regexp 1
oras repo ls $flags "$HOST" | grep --line-regexp "$REPOSITORY"`,
	Remove: `oras manifest delete --force $flags "$HOST/$REPOSITORY:1"`,
}, {
	Name:     "helm",
	Artifact: true,
	Setup:    [3]string{`flags=--plain-http`, same, `flags="--cert-file=$CERTIFICATE --key-file=$KEY"`},
	Login:    `echo "$PASSWORD" | helm registry login $flags --username "$USERNAME" --password-stdin "$HOST"`,
	Pull:     `helm pull $flags --destination "$(mktemp --directory)" "oci://$HOST/$REPOSITORY" --version 1.0.0`,
	Push: `cd "$HOME" && mkdir -p chart
printf 'apiVersion: v2\nname: %s\nversion: 1.0.0\n' "${REPOSITORY##*/}" >chart/Chart.yaml
helm package chart && helm push $flags "${REPOSITORY##*/}-1.0.0.tgz" "oci://$HOST/${REPOSITORY%/*}"`,
}, {
	Name:     "cosign",
	Artifact: true,
	Setup: [3]string{`flags=--allow-http-registry`, same,
		`flags="--registry-client-cert=$CERTIFICATE --registry-client-key=$KEY"`},
	Login: `cosign login --username "$USERNAME" --password "$PASSWORD" "$HOST"`,
	Pull:  `cosign verify $flags --key "$KEYS/cosign.pub" --insecure-ignore-tlog "$HOST/$REPOSITORY:1"`,
	Push: `cosign copy $flags "$HOST/clients/signed:1" "$HOST/$REPOSITORY:1"
cosign sign $flags --yes --key "$KEYS/cosign.key" --use-signing-config=false --tlog-upload=false "$HOST/$REPOSITORY:1"`,
	List: `cosign tree $flags "$HOST/$REPOSITORY:1" | grep sha256:`,
	Remove: `cosign clean $flags --force "$HOST/$REPOSITORY:1"
! cosign verify $flags --key "$KEYS/cosign.pub" --insecure-ignore-tlog "$HOST/$REPOSITORY:1"`, // clean ignores errors
}}

// criPull makes a container runtime pull.
func criPull(socket string) string {
	return fmt.Sprintf(`export CONTAINER_RUNTIME_ENDPOINT=%s
crictl pull ${USERNAME:+--creds="$USERNAME:$PASSWORD"} "$HOST/$REPOSITORY:1" && crictl rmi "$HOST/$REPOSITORY:1"`,
		socket)
}

// Matrix returns the table of docs/reference/clients.md.
func Matrix() string {
	var table strings.Builder
	table.WriteString("|client")
	for _, e := range Entries {
		table.WriteString("|" + e.Title)
	}
	table.WriteString("|\n" + strings.Repeat("|-", len(Entries)+1) + "|\n")
	for _, p := range All {
		table.WriteString("|" + p.Name)
		for _, e := range Entries {
			var letters []string
			for _, o := range operations {
				if p.Connects(e.Transport) && p.Can(o) && e.Allows(o) {
					letters = append(letters, string(o[:1]))
				}
			}
			table.WriteString("|" + strings.Join(letters, " "))
		}
		table.WriteString("|\n")
	}
	return table.String()
}
