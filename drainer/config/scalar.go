package config

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/agentoutbox/drainer/internal/duration"
)

func assignString(node ast.Node, into reflect.Value) string {
	text, ok := textOf(node)
	if !ok {
		return "want text; put the value in quotes"
	}
	into.SetString(text)
	return ""
}

func assignBool(node ast.Node, into reflect.Value) string {
	truth, ok := node.(*ast.BoolNode)
	if !ok {
		return "want true or false"
	}
	into.SetBool(truth.Value)
	return ""
}

func assignInt(node ast.Node, into reflect.Value) string {
	integer, ok := node.(*ast.IntegerNode)
	if !ok {
		return "want a whole number, without quotes"
	}
	number, err := strconv.ParseInt(fmt.Sprint(integer.Value), 10, 64)
	if err != nil || into.OverflowInt(number) {
		return "the number is too large"
	}
	into.SetInt(number)
	return ""
}

func assignFloat(node ast.Node, into reflect.Value) string {
	switch number := node.(type) {
	case *ast.FloatNode:
		into.SetFloat(number.Value)
		return ""
	case *ast.IntegerNode:
		if whole, err := strconv.ParseFloat(fmt.Sprint(number.Value), 64); err == nil {
			into.SetFloat(whole)
			return ""
		}
	}
	return "want a number, without quotes"
}

func assignDuration(node ast.Node, into *time.Duration) string {
	text, ok := textOf(node)
	if !ok {
		return duration.Hint
	}
	length, err := duration.Parse(text)
	if err != nil {
		return err.Error()
	}
	*into = length
	return ""
}
