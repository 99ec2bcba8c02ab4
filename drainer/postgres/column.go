package postgres

import "github.com/jackc/pgx/v5/pgtype"

// column is an array, null in each place where nothing was put. One that no row needs
// stays null as a whole and costs nothing, neither on the way to the database nor
// in it.
type column[V any] struct {
	values []V                  // a zero value is null
	array  pgtype.FlatArray[*V] // of pointers, because pgx would copy each value to the heap
}

func (c *column[V]) put(rows, i int, value V) {
	if c.array == nil {
		c.begin(rows)
	}
	c.values[i] = value
}

func (c *column[V]) begin(rows int) {
	c.values, c.array = make([]V, rows), make(pgtype.FlatArray[*V], rows)
	for i := range c.values {
		c.array[i] = &c.values[i]
	}
}

func bigint(value int64) pgtype.Int8    { return pgtype.Int8{Int64: value, Valid: true} }
func integer(value int) pgtype.Int4     { return pgtype.Int4{Int32: int32(value), Valid: true} }
func float(value float64) pgtype.Float8 { return pgtype.Float8{Float64: value, Valid: true} }
func text(value string) pgtype.Text     { return pgtype.Text{String: value, Valid: true} }
