//go:build ignore

/*
 * gunzip: one gzip member (RFC 1952) holding one deflate stream (RFC 1951), streaming, without allocation.
 *
 * It accepts what Go's compress/gzip accepts, with three additional rules: reserved header flags must be zero (as the
 * RFC requires), nothing may follow the member, and the caller's output function may set a limit. It never accesses
 * memory out of bounds and always terminates: each step consumes input or is the last one.
 */
#include <stddef.h>
#include <stdint.h>

enum {
	GUNZIP_HISTORY = 32768,   /* maximum match distance: RFC 1951, 3.2.5 */
	GUNZIP_FLUSH_AT = 131072, /* output in pieces of about 96 KiB: few calls, but still within the L2 cache */
	GUNZIP_LONGEST_MATCH = 258,
	GUNZIP_WINDOW = GUNZIP_FLUSH_AT + GUNZIP_LONGEST_MATCH + 8, /* matches are copied in units of 8 bytes */

	GUNZIP_NAME_LIMIT = 512, /* of the optional file name and comment, including NUL, as in Go's compress/gzip */

	CODE_MAX_BITS = 15,
	CODE_FAST_BITS = 10, /* codes up to this length need a single look-up */
	CODE_MAX_SYMBOLS = 288,
};

/*
 * An entry of a decoding table: bits 0-3 are the length of the code (an entry of 0 means that no such code exists), bits 4-7 the
 * number of extra bits, followed by the flags. From bit 16 on: the literal byte, the base of a length or distance, or
 * the code length symbol.
 */
enum { ENTRY_LITERAL = 1 << 8, ENTRY_END = 1 << 9, ENTRY_INVALID = 1 << 10 };

enum alphabet { ALPHABET_CODE_LENGTHS, ALPHABET_LITERALS_AND_LENGTHS, ALPHABET_DISTANCES };

struct code {
	uint32_t fast[1 << CODE_FAST_BITS];
	uint32_t sorted[CODE_MAX_SYMBOLS]; /* entries in code order, for longer codes */
	uint16_t count[CODE_MAX_BITS + 1]; /* codes of each length */
};

struct gunzip {
	/* Set by the caller. */
	size_t (*input)(void *context, const uint8_t **data);                 /* the next piece; 0 = end */
	int (*output)(void *context, const uint8_t *data, size_t size);       /* nonzero = stop */
	void *context;
	uint8_t *window; /* GUNZIP_WINDOW bytes */

	/* Private. */
	const uint8_t *next, *end;
	uint64_t bits;
	int bit_count; /* < 0: the stream is truncated. Higher bits are from the bytes at next, or 0. */
	size_t position, flushed;
	uint32_t crc, size;
	uint32_t crc_table[8][256];
	struct code literals, distances;
};

static const char gunzip_ends_early[] = "the gzip stream ends early";
static const char gunzip_stopped[] = "the gzip stream inflates to more than it may";

static inline uint64_t gunzip_load(const uint8_t *p)
{
	uint64_t x;
	__builtin_memcpy(&x, p, 8);
	return x; /* both architectures are little-endian */
}

static void gunzip_crc_init(struct gunzip *z)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
		z->crc_table[0][i] = crc;
	}
	for (int t = 1; t < 8; t++)
		for (int i = 0; i < 256; i++)
			z->crc_table[t][i] = z->crc_table[t - 1][i] >> 8 ^ z->crc_table[0][z->crc_table[t - 1][i] & 255];
}

/* Eight bytes per step, each with the table for its distance from the end of the step. */
static void gunzip_crc_update(struct gunzip *z, const uint8_t *data, size_t size)
{
	uint32_t crc = ~z->crc;
	for (; size >= 8; size -= 8, data += 8) {
		uint64_t x = gunzip_load(data) ^ crc;
		crc = z->crc_table[7][x & 255] ^ z->crc_table[6][x >> 8 & 255] ^ z->crc_table[5][x >> 16 & 255] ^ z->crc_table[4][x >> 24 & 255] ^
		      z->crc_table[3][x >> 32 & 255] ^ z->crc_table[2][x >> 40 & 255] ^ z->crc_table[1][x >> 48 & 255] ^ z->crc_table[0][x >> 56];
	}
	for (; size; size--)
		crc = crc >> 8 ^ z->crc_table[0][(crc ^ *data++) & 255];
	z->crc = ~crc;
}

/* Fills the bit buffer to at least 56 bits, or with the rest of the input. */
static void gunzip_refill(struct gunzip *z)
{
	while (z->bit_count < 56) {
		if (z->next == z->end) {
			size_t size = z->input(z->context, &z->next);
			if (size == 0) {
				z->next = z->end;
				return;
			}
			z->end = z->next + size;
		}
		z->bits |= (uint64_t)*z->next++ << z->bit_count;
		z->bit_count += 8;
	}
}

/* Reads up to 16 bits; -1 = the stream is truncated. */
static int32_t gunzip_take(struct gunzip *z, int count)
{
	gunzip_refill(z);
	if (z->bit_count < count)
		return -1;
	int32_t value = (int32_t)(z->bits & ((1u << count) - 1));
	z->bits >>= count;
	z->bit_count -= count;
	return value;
}

/* Outputs the new data in the window and keeps the history. */
static int gunzip_flush(struct gunzip *z)
{
	size_t size = z->position - z->flushed;
	gunzip_crc_update(z, z->window + z->flushed, size);
	z->size += (uint32_t)size;
	if (z->output(z->context, z->window + z->flushed, size))
		return -1;
	if (z->position > GUNZIP_HISTORY) {
		const uint8_t *from = z->window + z->position - GUNZIP_HISTORY;
		/* Copies forwards to a lower address, so an overlap is harmless. */
		for (size_t i = 0; i < GUNZIP_HISTORY; i += 8) {
			uint64_t x = gunzip_load(from + i);
			__builtin_memcpy(z->window + i, &x, 8);
		}
		z->position = GUNZIP_HISTORY;
	}
	z->flushed = z->position;
	return 0;
}

static uint32_t code_entry(enum alphabet alphabet, unsigned symbol)
{
	static const uint16_t length_base[29] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
	static const uint8_t length_extra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
	if (alphabet == ALPHABET_CODE_LENGTHS)
		return symbol << 16;
	if (alphabet == ALPHABET_DISTANCES) {
		if (symbol >= 30)
			return ENTRY_INVALID;
		if (symbol < 4)
			return (symbol + 1) << 16;
		unsigned extra = symbol / 2 - 1;
		return (((2 + (symbol & 1)) << extra) + 1) << 16 | extra << 4;
	}
	if (symbol < 256)
		return symbol << 16 | ENTRY_LITERAL;
	if (symbol == 256)
		return ENTRY_END;
	if (symbol > 285)
		return ENTRY_INVALID;
	return (uint32_t)length_base[symbol - 257] << 16 | (uint32_t)length_extra[symbol - 257] << 4;
}

/*
 * Builds the decoding tables of a canonical Huffman code. Returns -1 if the code is incomplete. As in zlib and Go, a
 * single code of one bit is accepted, and so is an empty code, whose use is an error.
 */
static int code_build(struct code *c, enum alphabet alphabet, const uint8_t *lengths, unsigned symbols)
{
	uint16_t next_code[CODE_MAX_BITS + 1], next_sorted[CODE_MAX_BITS + 1];
	unsigned used = 0, space = 0;

	for (int length = 0; length <= CODE_MAX_BITS; length++)
		c->count[length] = 0;
	for (unsigned symbol = 0; symbol < symbols; symbol++)
		c->count[lengths[symbol]]++;
	c->count[0] = 0;
	for (unsigned length = 1, code = 0; length <= CODE_MAX_BITS; length++) {
		code <<= 1;
		next_code[length] = (uint16_t)code;
		next_sorted[length] = (uint16_t)used;
		code += c->count[length];
		used += c->count[length];
		space += (unsigned)c->count[length] << (CODE_MAX_BITS - length);
	}
	if (space != 1u << CODE_MAX_BITS && used != 0 && !(used == 1 && c->count[1] == 1))
		return -1;

	for (unsigned i = 0; i < 1 << CODE_FAST_BITS; i++)
		c->fast[i] = 0;
	for (unsigned symbol = 0; symbol < symbols; symbol++) {
		unsigned length = lengths[symbol];
		if (length == 0)
			continue;
		uint32_t entry = code_entry(alphabet, symbol) | length;
		c->sorted[next_sorted[length]++] = entry;
		unsigned code = next_code[length]++, reversed = 0;
		if (length > CODE_FAST_BITS)
			continue;
		for (unsigned bit = 0; bit < length; bit++)
			reversed |= (code >> bit & 1) << (length - 1 - bit);
		for (unsigned i = reversed; i < 1 << CODE_FAST_BITS; i += 1u << length)
			c->fast[i] = entry;
	}
	return 0;
}

/* Looks up a code longer than CODE_FAST_BITS, bit by bit; 0 = no such code. */
__attribute__((noinline)) static uint32_t code_find_long(const struct code *c, uint64_t bits)
{
	unsigned code = 0, first = 0, index = 0;
	for (int length = 1; length <= CODE_MAX_BITS; length++) {
		code = code << 1 | (bits & 1);
		bits >>= 1;
		first <<= 1;
		unsigned count = c->count[length];
		if (code < first + count)
			return c->sorted[index + code - first];
		first += count;
		index += count;
	}
	return 0;
}

static inline uint32_t code_find(const struct code *c, uint64_t bits)
{
	uint32_t entry = c->fast[bits & ((1 << CODE_FAST_BITS) - 1)];
	return __builtin_expect(entry != 0, 1) ? entry : code_find_long(c, bits);
}

/* Decodes a compressed block. NULL = success. */
static const char *inflate_symbols(struct gunzip *z)
{
	/* The hot loop keeps these in registers. */
	const uint8_t *next = z->next, *end = z->end;
	uint64_t bits = z->bits;
	int bit_count = z->bit_count;
	size_t position = z->position;

	for (;;) {
		if (position >= GUNZIP_FLUSH_AT) {
			z->position = position;
			if (gunzip_flush(z))
				return gunzip_stopped;
			position = z->position;
		}
		/* At least 56 bits; the longest sequence has 48 (15+5 for a length, 15+13 for a distance). */
		if (end - next >= 8) {
			bits |= gunzip_load(next) << bit_count;
			next += (63 - bit_count) >> 3;
			bit_count |= 56;
		} else {
			z->next = next;
			z->bits = bits;
			z->bit_count = bit_count;
			gunzip_refill(z);
			next = z->next;
			end = z->end;
			bits = z->bits;
			bit_count = z->bit_count;
		}

		uint32_t entry = code_find(&z->literals, bits);
		bits >>= entry & 15;
		bit_count -= (int)(entry & 15);
		if (entry & ENTRY_LITERAL) {
			if (bit_count < 0)
				return gunzip_ends_early;
			z->window[position++] = (uint8_t)(entry >> 16);
			continue;
		}
		if (entry == 0 || entry & ENTRY_INVALID)
			return "a deflate block uses a code that it does not define";
		if (entry & ENTRY_END)
			break;

		unsigned extra = entry >> 4 & 15;
		size_t length = (entry >> 16) + (bits & ((1u << extra) - 1));
		bits >>= extra;
		bit_count -= (int)extra;

		entry = code_find(&z->distances, bits);
		if (entry == 0 || entry & ENTRY_INVALID)
			return "a deflate block uses a distance that it does not define";
		bits >>= entry & 15;
		extra = entry >> 4 & 15;
		size_t distance = (entry >> 16) + (bits & ((1u << extra) - 1));
		bits >>= extra;
		bit_count -= (int)((entry & 15) + extra);
		if (bit_count < 0)
			return gunzip_ends_early;

		/* Until the window first slides, position counts all previous output; later it exceeds the maximum distance. */
		if (distance > position)
			return "a deflate block refers to data before its start";
		uint8_t *to = z->window + position, *stop = to + length;
		const uint8_t *from = to - distance;
		position += length;
		if (distance >= 8) {
			for (; to < stop; to += 8, from += 8) {
				uint64_t x = gunzip_load(from);
				__builtin_memcpy(to, &x, 8);
			}
		} else {
			while (to < stop)
				*to++ = *from++;
		}
	}
	if (bit_count < 0)
		return gunzip_ends_early;
	z->next = next;
	z->end = end;
	z->bits = bits;
	z->bit_count = bit_count;
	z->position = position;
	return NULL;
}

/* Reads the code lengths of a dynamic block and builds its two codes. NULL = success. */
static const char *inflate_dynamic_codes(struct gunzip *z)
{
	static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
	static const char bad[] = "a deflate block has a header that makes no sense";
	uint8_t lengths[286 + 30] = {0};
	int32_t literals = gunzip_take(z, 5), distances = gunzip_take(z, 5), length_codes = gunzip_take(z, 4);
	if ((literals | distances | length_codes) < 0)
		return gunzip_ends_early;
	unsigned literal_count = (unsigned)literals + 257, total = literal_count + (unsigned)distances + 1;
	if (literal_count > 286 || distances + 1 > 30)
		return bad;

	uint8_t length_lengths[19] = {0};
	for (int i = 0; i < length_codes + 4; i++) {
		int32_t length = gunzip_take(z, 3);
		if (length < 0)
			return gunzip_ends_early;
		length_lengths[order[i]] = (uint8_t)length;
	}
	/* The code for code lengths is no longer needed when the literal code is built. */
	if (code_build(&z->literals, ALPHABET_CODE_LENGTHS, length_lengths, 19))
		return bad;

	for (unsigned i = 0; i < total;) {
		gunzip_refill(z);
		uint32_t entry = code_find(&z->literals, z->bits);
		if (entry == 0)
			return bad;
		z->bits >>= entry & 15;
		z->bit_count -= (int)(entry & 15);
		unsigned symbol = entry >> 16, extra = symbol < 16 ? 0 : symbol == 16 ? 2 : symbol == 17 ? 3 : 7;
		unsigned repeat = symbol < 16 ? 1 : symbol == 18 ? 11 : 3;
		repeat += (unsigned)(z->bits & ((1u << extra) - 1));
		z->bits >>= extra;
		z->bit_count -= (int)extra;
		if (z->bit_count < 0)
			return gunzip_ends_early;
		if (repeat > total - i || (symbol == 16 && i == 0))
			return bad;
		uint8_t length = symbol < 16 ? (uint8_t)symbol : symbol == 16 ? lengths[i - 1] : 0;
		while (repeat--)
			lengths[i++] = length;
	}
	if (code_build(&z->literals, ALPHABET_LITERALS_AND_LENGTHS, lengths, literal_count) ||
	    code_build(&z->distances, ALPHABET_DISTANCES, lengths + literal_count, total - literal_count))
		return bad;
	return NULL;
}

static void inflate_fixed_codes(struct gunzip *z)
{
	uint8_t lengths[288];
	for (int i = 0; i < 288; i++)
		lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
	code_build(&z->literals, ALPHABET_LITERALS_AND_LENGTHS, lengths, 288);
	for (int i = 0; i < 32; i++)
		lengths[i] = 5;
	code_build(&z->distances, ALPHABET_DISTANCES, lengths, 32);
}

static void gunzip_align(struct gunzip *z)
{
	z->bits >>= z->bit_count & 7;
	z->bit_count &= ~7;
}

static const char *inflate_stored(struct gunzip *z)
{
	gunzip_align(z);
	int32_t size = gunzip_take(z, 16), complement = gunzip_take(z, 16);
	if (complement < 0)
		return gunzip_ends_early;
	if ((size ^ complement) != 0xffff)
		return "a stored deflate block has a damaged length";
	while (size > 0) {
		if (z->position >= GUNZIP_FLUSH_AT && gunzip_flush(z))
			return gunzip_stopped;
		if (z->bit_count == 0) {
			/* After the bytes in the bit buffer, copy whole runs. The buffered higher bits become invalid. */
			z->bits = 0;
			size_t run = (size_t)(z->end - z->next), room = GUNZIP_FLUSH_AT - z->position;
			run = run < room ? run : room;
			run = run < (size_t)size ? run : (size_t)size;
			for (size_t i = 0; i < run; i++)
				z->window[z->position + i] = z->next[i];
			z->position += run;
			z->next += run;
			size -= (int32_t)run;
			if (run)
				continue;
		}
		int32_t byte = gunzip_take(z, 8);
		if (byte < 0)
			return gunzip_ends_early;
		z->window[z->position++] = (uint8_t)byte;
		size--;
	}
	return NULL;
}

static const char *inflate(struct gunzip *z)
{
	for (;;) {
		int32_t last = gunzip_take(z, 1), type = gunzip_take(z, 2);
		const char *error = NULL;
		if (type < 0)
			return gunzip_ends_early;
		switch (type) {
		case 0:
			error = inflate_stored(z);
			break;
		case 1:
			inflate_fixed_codes(z);
			error = inflate_symbols(z);
			break;
		case 2:
			error = inflate_dynamic_codes(z);
			if (!error)
				error = inflate_symbols(z);
			break;
		default:
			error = "a deflate block is of a type that does not exist";
		}
		if (error)
			return error;
		if (last)
			return gunzip_flush(z) ? gunzip_stopped : NULL;
	}
}

/* Reads a byte of the header and adds it to the checksum; -1 = the stream is truncated. */
static int32_t gunzip_header_byte(struct gunzip *z)
{
	int32_t value = gunzip_take(z, 8);
	uint8_t byte = (uint8_t)value;
	if (value >= 0)
		gunzip_crc_update(z, &byte, 1);
	return value;
}

static const char *gunzip_header(struct gunzip *z)
{
	enum { FHCRC = 2, FEXTRA = 4, FNAME = 8, FCOMMENT = 16, RESERVED = 0xe0 };
	static const char bad[] = "the gzip header is damaged";
	int32_t header[10];
	for (int i = 0; i < 10; i++)
		if ((header[i] = gunzip_header_byte(z)) < 0)
			return gunzip_ends_early;
	int32_t flags = header[3];
	if (header[0] != 0x1f || header[1] != 0x8b || header[2] != 8 || flags & RESERVED)
		return bad;
	if (flags & FEXTRA) {
		int32_t low = gunzip_header_byte(z), high = gunzip_header_byte(z);
		if (high < 0)
			return gunzip_ends_early;
		for (int32_t left = high << 8 | low; left; left--)
			if (gunzip_header_byte(z) < 0)
				return gunzip_ends_early;
	}
	for (int field = FNAME; field <= FCOMMENT; field <<= 1) {
		if (!(flags & field))
			continue;
		int32_t byte;
		int size = 0;
		do {
			byte = gunzip_header_byte(z);
			if (byte < 0)
				return gunzip_ends_early;
			if (++size > GUNZIP_NAME_LIMIT)
				return bad;
		} while (byte);
	}
	if (flags & FHCRC) {
		int32_t want = (int32_t)(z->crc & 0xffff), got = gunzip_take(z, 16);
		if (got < 0)
			return gunzip_ends_early;
		if (got != want)
			return bad;
	}
	return NULL;
}

/*
 * Inflates one member from input to output. Returns NULL if the CRC-32 and size match, otherwise a description of the
 * error. If input or output stopped it, the caller knows the real reason.
 */
static const char *gunzip(struct gunzip *z)
{
	z->next = z->end = NULL;
	z->bits = 0;
	z->bit_count = 0;
	z->position = z->flushed = 0;
	z->crc = z->size = 0;
	gunzip_crc_init(z);

	const char *error = gunzip_header(z);
	if (error)
		return error;
	z->crc = 0;
	error = inflate(z);
	if (error)
		return error;

	gunzip_align(z);
	uint32_t trailer[2] = {0, 0};
	for (int i = 0; i < 8; i++) {
		int32_t byte = gunzip_take(z, 8);
		if (byte < 0)
			return gunzip_ends_early;
		trailer[i / 4] |= (uint32_t)byte << i % 4 * 8;
	}
	if (trailer[0] != z->crc || trailer[1] != z->size)
		return "the gzip checksum or size is wrong";
	if (gunzip_take(z, 8) >= 0)
		return "something follows the gzip stream";
	return NULL;
}
