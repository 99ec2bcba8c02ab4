package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/integration/fault"
)

// event is what `go test -json` says of a test.
type event struct {
	Action, Package, Test, Key, Value, Output string
}

// inject runs the tests of the cases, one package after the other, and reports
// whether all of them passed.
func inject(ctx context.Context, cases []fault.Case) (found *findings, passed bool, err error) {
	packages, tests := needed(cases)
	found = newFindings()
	if len(tests) == 0 {
		return found, true, nil
	}
	arguments := append([]string{"test", "-json", "-count=1", "-p=1", "-timeout=30m", "-run", "^(" + strings.Join(tests, "|") + ")$"}, packages...)
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, false, err
	}
	if err := command.Start(); err != nil {
		return nil, false, fmt.Errorf("go test: %w", err)
	}
	if err := found.follow(output); err != nil {
		return nil, false, fmt.Errorf("reading what go test says: %w", err)
	}
	err = command.Wait()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		return nil, false, fmt.Errorf("go test: %w", err)
	}
	return found, err == nil, ctx.Err()
}

func needed(cases []fault.Case) (packages, tests []string) {
	for _, c := range cases {
		for _, test := range c.Tests {
			folder, name, _ := strings.Cut(test, " ")
			packages = append(packages, "./"+folder)
			tests = append(tests, name)
		}
	}
	slices.Sort(packages)
	slices.Sort(tests)
	return slices.Compact(packages), slices.Compact(tests)
}

func (f *findings) follow(output io.Reader) error {
	decoder := json.NewDecoder(output)
	for {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.take(e)
	}
}
