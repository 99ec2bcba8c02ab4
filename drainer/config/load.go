package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/agentoutbox/drainer/dispatch"
)

// Load reads a file, fills in defaults, expands secrets and builds the
// adapters. Every mistake that it can find is in the *InvalidError it returns.
// Either way it says which files it read.
func Load(path string, registry dispatch.Registry) (*Config, error) {
	return loadAll(path, registry, &sources{read: map[string]source{}})
}

// Reload is Load for a daemon that runs. It reads no pipe and no device: nobody
// would notice that it waits.
func Reload(path string, registry dispatch.Registry) (*Config, error) {
	return loadAll(path, registry, &sources{read: map[string]source{}, noPipes: true})
}

func loadAll(path string, registry dispatch.Registry, sources *sources) (*Config, error) {
	config, err := loadFrom(path, registry, sources)
	var mistakes *InvalidError
	if errors.As(err, &mistakes) {
		mistakes.Files = sources.files
	}
	if err != nil {
		return nil, err
	}
	config.Files = sources.files
	return config, nil
}

func loadFrom(path string, registry dispatch.Registry, sources *sources) (*Config, error) {
	content, err := sources.readFile(path)
	if err != nil {
		return nil, invalid([]*Error{{File: path, Message: fmt.Sprintf("cannot be read: %s; correct --config", reason(err))}})
	}
	return load(path, content, registry, &secrets{lookupEnv: os.LookupEnv, readFile: sources.readFile})
}

func load(name string, content []byte, registry dispatch.Registry, secrets *secrets) (*Config, error) {
	root, problem := parse(name, content)
	if problem != nil {
		return nil, invalid([]*Error{problem})
	}
	r := newReader(name, secrets)
	root = (&resolver{reader: r, anchors: map[string]ast.Node{}}).resolve(root)
	config := r.root(field{key: token.Position{Line: 1, Column: 1}, value: root}, registry)
	if err := invalid(r.problems); err != nil {
		return nil, err
	}
	config.Secrets = secrets.revealed
	return config, nil
}

func parse(name string, content []byte) (ast.Node, *Error) {
	file, err := parser.ParseBytes(content, 0)
	if err != nil {
		return nil, syntaxError(name, err)
	}
	switch len(file.Docs) {
	case 0:
		return nil, nil
	case 1:
		return file.Docs[0].Body, nil
	default:
		return nil, &Error{File: name, Line: 1, Column: 1, Message: "the file holds several YAML documents; keep one"}
	}
}

func (r *reader) root(f field, registry dispatch.Registry) *Config {
	block := defaultRoot()
	r.decode(f, reflect.ValueOf(&block).Elem())
	r.checkRoot(block)
	if _, ok := r.egress(path{"egress"}, block.Egress); !ok {
		block.Egress = defaultRoot().Egress // reported once, not for each provider that inherits it
	}
	config := &Config{
		DatabaseURL: block.Database.URL,
		Worker:      Worker(block.Worker),
		Server:      Server(block.Server),
		Retention:   Retention{Default: block.Retention, Tools: map[string]time.Duration{}},
		Pages:       r.pages(path{"pages"}, block.Pages),
		PageRepeat:  block.PageRepeat,
		Networks:    map[string]dispatch.Network{},
	}
	for _, child := range block.Providers {
		provider, network := r.provider(child, registry, block, config.Retention)
		config.Providers = append(config.Providers, provider)
		config.Networks[provider.Name] = network
	}
	r.checkReferences(config.Providers)
	return config
}
