package config

import (
	"strconv"

	"github.com/agentoutbox/drainer/dispatch/egress"
)

type egressBlock struct {
	Private string   `yaml:"private" jsonschema:"enum=allow,enum=deny,default=allow" jsonschema_description:"Whether loopback, private and reserved addresses may be reached. Link-local addresses and those of cloud metadata services never are."`
	Allow   []string `yaml:"allow" jsonschema_description:"The only destinations that may be reached: names, *.names below one, addresses, or blocks such as 10.0.0.0/8, each with :port or without. Left out, all that are not denied."`
}

const (
	allowPrivate = "allow"
	denyPrivate  = "deny"
)

// egress reports mistakes, and whether there were none.
func (r *reader) egress(at path, block egressBlock) (rules egress.Rules, ok bool) {
	before := len(r.problems)
	if block.Private != allowPrivate && block.Private != denyPrivate {
		r.reject(at.child("private"), "want %s or %s", allowPrivate, denyPrivate)
	}
	rules = egress.Rules{DenyPrivate: block.Private == denyPrivate}
	if block.Allow != nil {
		rules.Allow = []egress.Target{}
	}
	for i, text := range block.Allow {
		target, err := egress.ParseTarget(text)
		if err != nil {
			r.reject(at.child("allow").child(strconv.Itoa(i)), "%s", err)
		}
		rules.Allow = append(rules.Allow, target)
	}
	return rules, len(r.problems) == before
}
