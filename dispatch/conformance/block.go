package conformance

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
)

// Block is a block of configuration as a user writes it. It is strict, and its
// errors say where, but repeat nothing: what an adapter adds is then its own.
func Block(text string) dispatch.Block { return block(text) }

type block string

func (b block) Decode(into any) error {
	if strings.TrimSpace(string(b)) == "" {
		return nil
	}
	err := yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
	var located yaml.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &located) && located.GetToken() != nil:
		at := located.GetToken().Position
		return fmt.Errorf("line %d, column %d is not what %s takes", at.Line, at.Column, reflect.TypeOf(into))
	}
	return fmt.Errorf("the block is not what %s takes", reflect.TypeOf(into))
}
