package conformance

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// fitsColumns reports whether Postgres takes a result: text holds neither NUL
// nor broken UTF-8, and jsonb no NUL either, however it is written.
func fitsColumns(s Seen) bool {
	words := []string{s.Result.ErrorClass, s.Result.ProviderRef}
	for name, value := range s.Result.ResponseHeaders {
		words = append(words, name, value)
	}
	if p := s.Result.Problem; p != nil {
		words = append(words, p.Type, p.Title, p.Detail)
	}
	if response := s.Result.Response; response != nil {
		if !json.Valid(response) {
			return false
		}
		words = append(append(words, string(response)), textsIn(response)...)
	}
	for _, word := range words {
		if !utf8.ValidString(word) || strings.ContainsRune(word, 0) {
			return false
		}
	}
	return true
}
