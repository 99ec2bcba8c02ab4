package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Shared is a provider that two files reach at the same address and in the same namespace, so that the keys of
// their outboxes can collide.
type Shared struct {
	Provider        string `json:"provider"`
	SameCredentials bool   `json:"same_credentials"` // as far as the files show; if true, both use one account
}

// account identifies the place of a provider's effects. References to secrets are compared as they are written, so
// that a comparison needs no access to the secrets.
type account struct {
	address     string // with the adapter; empty if the file gives no address
	credentials []string
	namespace   string
	operations  []string
}

// rawFile holds the fields of a configuration that distinguish accounts.
type rawFile struct {
	Database struct {
		URL string `yaml:"url"`
	} `yaml:"database"`
	Providers map[string]map[string]any `yaml:"providers"`
}

// SharedAccounts compares two files. Keys can collide only if the provider name and the operation are the same in
// both files, because both are part of the key.
func SharedAccounts(one, other string) ([]Shared, error) {
	files := [2]rawFile{}
	for i, path := range []string{one, other} {
		content, err := readWhole(path)
		if err != nil {
			return nil, invalid([]*Error{{File: path, Message: fmt.Sprintf("cannot be read: %s", reason(err))}})
		}
		root, problem := parse(path, content)
		if problem != nil || root != nil && yaml.NodeToValue(root, &files[i]) != nil {
			return nil, invalid([]*Error{{File: path, Message: "is no configuration; drainer config validate --config says where"}})
		}
	}
	shared := []Shared{}
	if url := files[0].Database.URL; url != "" && url == files[1].Database.URL && !strings.Contains(url, "${") {
		return shared, nil // both serve one outbox, in which keys are unique
	}
	for _, name := range slices.Sorted(maps.Keys(files[0].Providers)) {
		a, b := accountOf(files[0].Providers[name]), accountOf(files[1].Providers[name])
		common := slices.ContainsFunc(a.operations, func(operation string) bool { return slices.Contains(b.operations, operation) })
		if a.address != "" && a.address == b.address && a.namespace == b.namespace && common {
			shared = append(shared, Shared{name, slices.Equal(a.credentials, b.credentials)})
		}
	}
	return shared, nil
}

// addressFields name the settings that hold a provider's address, and credentialFields those that hold its
// credentials. The address of a child process is its command.
var (
	addressFields    = []string{"base_url", "url", "urls", "server", "brokers", "command"}
	credentialFields = []string{"headers", "sasl", "auth", "token", "username", "password", "nkey_seed", "credentials", "env", "signing_secrets"}
)

func accountOf(provider map[string]any) account {
	adapter, _ := provider["adapter"].(string)
	settings, _ := provider[adapter].(map[string]any)
	idempotency, _ := provider["idempotency"].(map[string]any)
	tools, _ := provider["tools"].(map[string]any)
	a := account{operations: slices.Collect(maps.Keys(tools))}
	a.namespace, _ = idempotency["namespace"].(string)
	for _, field := range addressFields {
		for _, text := range texts(field, settings[field]) {
			where, login := withoutLogin(strings.TrimPrefix(text, field+"="))
			a.address += " " + where
			if login != "" {
				a.credentials = append(a.credentials, login)
			}
		}
	}
	if a.address != "" {
		a.address = adapter + a.address
	}
	for _, field := range credentialFields {
		a.credentials = append(a.credentials, texts(field, settings[field])...)
	}
	slices.Sort(a.credentials)
	return a
}

// texts lists the scalars in a value, each with its name. The order of a list does not matter, except for a
// command's arguments.
func texts(name string, value any) (all []string) {
	switch value := value.(type) {
	case nil:
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			all = append(all, texts(name+"."+strings.ToLower(key), value[key])...)
		}
	case []any:
		for _, element := range value {
			all = append(all, texts(name, element)...)
		}
		if name != "command" {
			slices.Sort(all)
		}
	default:
		all = append(all, fmt.Sprintf("%s=%v", name, value))
	}
	return all
}

// webAddress matches the parts of a URL: scheme, login, host and the rest. The login may contain a reference.
var webAddress = regexp.MustCompile(`^(\w[\w+.-]*://)(?:((?:\$\{[^}]*\}|[^/?#@])*)@)?([^/?#]*)(.*)$`)

// withoutLogin splits user and password from an address.
func withoutLogin(address string) (where, login string) {
	parts := webAddress.FindStringSubmatch(address)
	if parts == nil {
		return address, ""
	}
	return parts[1] + strings.ToLower(parts[3]) + strings.TrimRight(parts[4], "/"), parts[2]
}
