package main

import (
	"bytes"
	"context"
	"debug/macho"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/tools/program"
)

const (
	// sbomTool reads the modules of a program from its build information, which lists only those that are linked.
	sbomTool = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"
	// suffixSBOM is the suffix of bills of materials
	// (https://cyclonedx.org/specification/overview/#recognized-file-patterns).
	suffixSBOM = ".cdx.json"
)

// listModules returns the bill of materials of a Go program, a CycloneDX document in JSON.
func listModules(ctx context.Context, program, version string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "run", sbomTool, "bin", "-json", "-noserial", "-std", "-version="+version,
		program)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}

// writeSBOM writes the bill of materials of a program with the time of the commit, so that it is reproducible.
func (r release) writeSBOM(ctx context.Context, file, output string) error {
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("%w (make images builds it)", err)
	}
	content, err := r.listModules(ctx, file, r.version)
	if err != nil {
		return fmt.Errorf("bill of materials of %s: %w", file, err)
	}
	var document map[string]any
	if err := json.Unmarshal(content, &document); err != nil {
		return fmt.Errorf("bill of materials of %s: %w", file, err)
	}
	metadata, ok := document["metadata"].(map[string]any)
	if !ok {
		return fmt.Errorf("bill of materials of %s: no metadata", file)
	}
	metadata["timestamp"] = r.source.time.Format(time.RFC3339)
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(document); err != nil {
		return err
	}
	return program.WriteFile(output, encoded.Bytes())
}

// checkDarwin checks what macOS requires of a program: this machine cannot run it.
func checkDarwin(w workstation) error {
	_, arch, _ := strings.Cut(w.platform, "/")
	f, err := macho.Open(w.file)
	if err != nil {
		return fmt.Errorf("%s: %w", w.file, err)
	}
	defer func() { _ = f.Close() }()
	if want := map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64}[arch]; f.Type != macho.TypeExec ||
		f.Cpu != want {
		return fmt.Errorf("%s is a Mach-O file of type %v for %v, not a program for %v", w.file, f.Type, f.Cpu, want)
	}
	// Macs with Apple silicon run signed programs only; Go's linker adds an ad-hoc signature.
	const codeSignature = 0x1d // LC_CODE_SIGNATURE
	if arch == "arm64" && !slices.ContainsFunc(f.Loads, func(l macho.Load) bool {
		return f.ByteOrder.Uint32(l.Raw()) == codeSignature
	}) {
		return fmt.Errorf("%s has no code signature", w.file)
	}
	return nil
}
