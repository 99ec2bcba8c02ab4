package drainer

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// shortestSecret is the least length of a secret that is looked for. Shorter ones could be ordinary words.
	shortestSecret = 8
	// rememberedSecrets bounds the secrets that are kept, including those of earlier configurations: a
	// provider may repeat a credential that has been rotated since.
	rememberedSecrets = 64
	redacted          = "[secret]"
	// nestings bounds how many levels of quoting, as JSON or for a URL, are looked through.
	nestings = 6
	// What begins an escape in JSON, and there or in a URL.
	jsonEscapes, allEscapes = `\`, `\%`
)

// Redactor removes configured secrets from providers' answers, which agents can read. It looks for each secret as
// it is, in base64 at each offset (so also within user:password), and in URL encoding. A nil Redactor changes
// nothing.
type Redactor struct {
	mu      sync.Mutex
	secrets []string // the newest first
	needles atomic.Pointer[[]string]
	parted  atomic.Pointer[[]string] // those of which a part gives something away
}

// NewRedactor returns a Redactor of these secrets. [Redactor.Add] adds more.
func NewRedactor(secrets []string) *Redactor {
	r := &Redactor{}
	r.Add(secrets)
	return r
}

// Add adds the secrets of a new configuration, before that is in use. The earlier ones stay, since attempts with
// them may still be under way.
func (r *Redactor) Add(secrets []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := slices.Concat(credentials(secrets), r.secrets)
	var distinct []string
	for _, secret := range known {
		if len(distinct) < len(secrets)*2+rememberedSecrets && !slices.Contains(distinct, secret) {
			distinct = append(distinct, secret)
		}
	}
	r.secrets = distinct
	var needles, parted []string
	for _, secret := range distinct {
		needles = append(needles, forms(secret)...)
		if !strings.Contains(secret, "://") { // a reference may be the path of the provider's own address
			parted = append(parted, forms(secret)...)
		}
	}
	// The longest first: a secret may be a part of another one.
	slices.SortFunc(needles, func(a, b string) int { return len(b) - len(a) })
	needles = slices.Compact(needles)
	r.needles.Store(&needles)
	r.parted.Store(&parted)
}

// TooShort counts the secrets that are too short to be looked for.
func TooShort(secrets []string) (short int) {
	for _, secret := range secrets {
		if len(secret) < shortestSecret {
			short++
		}
	}
	return short
}

// credentials are the values to look for. The address of a provider is none, but for a
// password in it.
func credentials(secrets []string) (found []string) {
	for _, secret := range secrets {
		address, err := url.Parse(secret)
		isAddress := err == nil && address.Scheme != "" && address.Host != ""
		if isAddress && address.User == nil && address.RawQuery == "" && len(address.Path) <= shortestSecret {
			continue
		}
		if isAddress {
			// A password that is the user's name guards nothing, and may be a word of answers: postgres.
			if password, has := address.User.Password(); has && len(password) >= shortestSecret && password != address.User.Username() {
				found = append(found, password)
			}
		}
		if len(secret) >= shortestSecret {
			found = append(found, secret)
		}
	}
	return found
}

// forms are how a secret may be written. Base64 depends on what stands before it,
// so the characters that also hold a neighbour's bits are left out.
func forms(secret string) []string {
	query, path := url.QueryEscape(secret), url.PathEscape(secret)
	all := []string{secret, query, path, lowerEscapes(query), lowerEscapes(path), strings.ReplaceAll(secret, " ", "+")}
	if plain := plainest([]byte(secret)); len(plain) >= shortestSecret {
		all = append(all, string(plain))
	}
	for offset, shared := range []int{0, 2, 3} {
		padded := append(make([]byte, offset), secret...)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, encoding.EncodeToString(padded)[shared:len(padded)*4/3])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func lowerEscapes(escaped string) string {
	text := []byte(escaped)
	for i := 0; i+2 < len(text); i++ {
		if text[i] == '%' {
			copy(text[i:i+3], bytes.ToLower(text[i:i+3]))
		}
	}
	return string(text)
}

// result returns the answer without secrets.
func (r *Redactor) result(result dispatch.Result) dispatch.Result {
	if r == nil || len(*r.needles.Load()) == 0 {
		return result
	}
	result.ErrorClass = r.Text(result.ErrorClass)
	result.ProviderRef = r.reference(r.words(result.ProviderRef))
	result.Response = r.document(result.Response)
	if p := result.Problem; p != nil {
		result.Problem = &dispatch.Problem{Type: r.words(p.Type), Title: r.words(p.Title), Detail: r.words(p.Detail)}
	}
	if len(result.ResponseHeaders) > 0 {
		headers := make(map[string]string, len(result.ResponseHeaders))
		for name, value := range result.ResponseHeaders {
			headers[r.Text(name)] = r.Text(value)
		}
		result.ResponseHeaders = headers
	}
	return result
}

// words is Text for words of which a few characters are kept afterwards: it searches their
// beginning alone. If that gets shorter by it, a secret at its end could be among those.
func (r *Redactor) words(text string) string {
	const searched = 64 << 10
	if len(text) <= searched {
		return r.Text(text)
	}
	if beginning := r.Text(text[:searched]); len(beginning) == searched {
		return beginning
	}
	return redacted
}

// reference keeps nothing that begins or ends within a secret, or lies in one: an expression,
// or an adapter, took the text out of an answer.
func (r *Redactor) reference(text string) string {
	for _, needle := range *r.parted.Load() {
		if overlap(text, needle) || overlap(needle, text) {
			return redacted
		}
	}
	return text
}

// overlap reports that b begins in a, and ends with it or before its end.
func overlap(a, b string) bool {
	if len(b) < shortestSecret || !strings.Contains(a, b[:shortestSecret]) { // nearly always, and quick to see
		return false
	}
	for length := shortestSecret; length <= min(len(a), len(b)); length++ {
		if strings.HasSuffix(a, b[:length]) {
			return true
		}
	}
	return strings.Contains(a, b)
}

// Bounds of a provider's words that are kept, in characters.
const (
	longestReference = 255
	longestTitle     = 255
	longestDetail    = 1024
)

// bounded cuts a provider's words. It comes after their secrets are out: a part of a secret
// would not be recognised. So no adapter cuts them.
func bounded(result dispatch.Result) dispatch.Result {
	result.ProviderRef = first(result.ProviderRef, longestReference, "")
	if p := result.Problem; p != nil {
		result.Problem = &dispatch.Problem{Type: first(p.Type, longestTitle, "…"), Title: first(p.Title, longestTitle, "…"), Detail: first(p.Detail, longestDetail, "…")}
	}
	return result
}

func first(text string, length int, mark string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
	if len(text) <= length {
		return text
	}
	for i := range text {
		if length == 0 {
			return strings.Clone(text[:i]) + mark // the whole of it may be large
		}
		length--
	}
	return text
}

// Text takes the secrets out of a text. It also looks through what is quoted in it, as JSON or for a URL. What is found
// there is not cut out: all of the text goes.
func (r *Redactor) Text(text string) string {
	for _, needle := range *r.needles.Load() {
		if strings.Contains(text, needle) {
			text = strings.ReplaceAll(text, needle, redacted)
		}
	}
	if r.isQuotedIn([]byte(text)) {
		return redacted
	}
	return text
}

func (r *Redactor) isIn(text []byte) bool {
	return slices.ContainsFunc(*r.needles.Load(), func(needle string) bool { return bytes.Contains(text, []byte(needle)) })
}

// isQuotedIn also looks for it in JSON alone: a secret may have a % of its own.
func (r *Redactor) isQuotedIn(text []byte) bool {
	return r.isBehind(text, jsonEscapes) || bytes.IndexByte(text, '%') >= 0 && r.isBehind(text, allEscapes)
}

func (r *Redactor) isBehind(text []byte, escapes string) bool {
	for range nestings {
		plain := unquoted(text, escapes)
		if len(plain) == len(text) {
			return false
		}
		if text = plain; r.isIn(text) {
			return true
		}
	}
	return false
}

// document redacts JSON, and keeps it JSON: in strings, names and numbers alike. It
// costs a search of the text where nothing is found.
func (r *Redactor) document(document json.RawMessage) json.RawMessage {
	if !r.isIn(document) && !r.isQuotedIn(document) {
		return document
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) == nil {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if encoder.Encode(r.value(value)) == nil {
			if kept := bytes.TrimSpace(text.Bytes()); !r.isIn(kept) && !r.isQuotedIn(kept) {
				return kept
			}
		}
	}
	return json.RawMessage(`"` + redacted + `"`) // it is no JSON, or the secret is itself JSON
}

func (r *Redactor) value(value any) any {
	switch value := value.(type) {
	case string:
		return r.Text(value)
	case json.Number:
		if text := r.Text(value.String()); text != value.String() {
			return text
		}
	case []any:
		for i := range value {
			value[i] = r.value(value[i])
		}
	case map[string]any:
		kept := make(map[string]any, len(value))
		for name, member := range value {
			kept[r.Text(name)] = r.value(member)
		}
		return kept
	}
	return value
}

// plainest resolves all escapes in a text. A secret may contain escapes itself, and be quoted by a program that
// uses others.
func plainest(text []byte) []byte {
	for range nestings {
		plain := unquoted(text, allEscapes)
		if len(plain) == len(text) {
			break
		}
		text = plain
	}
	return text
}

// unquoted resolves one level of these escapes, as far as a secret could hide behind them.
func unquoted(text []byte, escapes string) []byte {
	if !bytes.ContainsAny(text, escapes) {
		return text
	}
	plain := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) && escapes == allEscapes {
			if octet, err := hex.AppendDecode(plain, text[i+1:i+3]); err == nil {
				plain = octet
				i += 2
				continue
			}
		}
		if text[i] != '\\' || i+1 == len(text) {
			plain = append(plain, text[i])
			continue
		}
		i++
		var character string
		if text[i] == 'u' && i+4 < len(text) && json.Unmarshal([]byte(`"\u`+string(text[i+1:i+5])+`"`), &character) == nil {
			plain = append(plain, character...)
			i += 4
			continue
		}
		if json.Unmarshal([]byte{'"', '\\', text[i], '"'}, &character) != nil {
			character = string(text[i : i+1])
		}
		plain = append(plain, character...)
	}
	return plain
}
