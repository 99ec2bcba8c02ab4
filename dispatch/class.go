package dispatch

// Class says what repeating a call does; it decides whether an ambiguous
// failure may be retried.
type Class string

const (
	ReadOnly            Class = "read_only"
	NaturallyIdempotent Class = "naturally_idempotent"
	KeyIdempotent       Class = "key_idempotent"
	NonIdempotent       Class = "non_idempotent"
)

// Classes lists every class, safest first.
func Classes() []Class {
	return []Class{ReadOnly, NaturallyIdempotent, KeyIdempotent, NonIdempotent}
}
