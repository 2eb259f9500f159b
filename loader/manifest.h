//go:build ignore

/*
 * Parser of the payload's manifest. The encoding is canonical, so a parsed manifest can be written again unchanged; see
 * the package comment of internal/payload/injector, whose ParseManifest accepts exactly the same manifests.
 */
#include <stddef.h>
#include <stdint.h>

enum {
	MANIFEST_MAX_SIZE = 8192,
	MANIFEST_MAX_CHUNKS = 64,
	MANIFEST_MAX_CHUNK_SIZE = 1 << 20, /* limit of a ConfigMap */
	MANIFEST_MAX_PROGRAM_SIZE = 256 << 20,
	MANIFEST_MAX_PROGRAM_OFFSET = 65536,
	MANIFEST_MAX_NAME = 32,
};

struct manifest_chunk {
	uint32_t size;
	uint8_t sha256[32];
};

struct manifest {
	char program[MANIFEST_MAX_NAME + 1];
	char architecture[MANIFEST_MAX_NAME + 1];
	uint32_t layer_size;
	uint8_t layer_sha256[32];
	uint32_t program_offset;
	uint32_t program_size;
	uint8_t program_sha256[32];
	uint32_t chunks;
	struct manifest_chunk chunk[MANIFEST_MAX_CHUNKS];
};

struct manifest_cursor {
	const uint8_t *next, *end;
	unsigned line;     /* from 1 */
	const char *error; /* what was expected there; NULL = no error. Reading stops at the first error. */
};

static void manifest_text(struct manifest_cursor *c, const char *text, const char *expected)
{
	for (; !c->error && *text; text++) {
		if (c->next == c->end || *c->next != (uint8_t)*text)
			c->error = expected;
		else
			c->next++;
	}
}

static void manifest_end_line(struct manifest_cursor *c)
{
	manifest_text(c, "\n", "the end of the line");
	if (!c->error)
		c->line++;
}

/* Decimal without sign and leading zeros. */
static uint32_t manifest_number(struct manifest_cursor *c, uint32_t min, uint32_t max, const char *expected)
{
	uint64_t value = 0;
	const uint8_t *start = c->next;
	if (c->error)
		return 0;
	while (c->next < c->end && *c->next >= '0' && *c->next <= '9' && value <= max)
		value = value * 10 + (uint64_t)(*c->next++ - '0');
	if (c->next == start || (*start == '0' && c->next - start > 1) || value < min || value > max)
		c->error = expected;
	return (uint32_t)value;
}

static void manifest_sha256(struct manifest_cursor *c, uint8_t sum[32])
{
	for (int i = 0; i < 64 && !c->error; i++) {
		uint8_t x = c->next < c->end ? *c->next : 0, digit;
		if (x >= '0' && x <= '9')
			digit = (uint8_t)(x - '0');
		else if (x >= 'a' && x <= 'f')
			digit = (uint8_t)(x - 'a' + 10);
		else {
			c->error = "a SHA-256 of 64 lower-case hexadecimal digits";
			return;
		}
		sum[i / 2] = (uint8_t)(i % 2 ? sum[i / 2] | digit : digit << 4);
		c->next++;
	}
}

/* Lower-case letters, digits and '-'. */
static void manifest_name(struct manifest_cursor *c, char name[MANIFEST_MAX_NAME + 1])
{
	int size = 0;
	while (!c->error && c->next < c->end && size < MANIFEST_MAX_NAME) {
		uint8_t x = *c->next;
		if (!((x >= 'a' && x <= 'z') || (x >= '0' && x <= '9') || x == '-'))
			break;
		name[size++] = (char)x;
		c->next++;
	}
	name[size] = 0;
	if (!c->error && size == 0)
		c->error = "a name of lower-case letters, digits and '-'";
}

/* Returns NULL, or what was expected at *line. *m is complete only after NULL. */
static const char *manifest_parse(struct manifest *m, const uint8_t *data, size_t size, unsigned *line)
{
	struct manifest_cursor c = {data, data + size, 1, NULL};
	uint64_t sum = 0;

	if (size > MANIFEST_MAX_SIZE)
		c.error = "a manifest of at most 8192 bytes";
	manifest_text(&c, "zarf-registry payload 1", "\"zarf-registry payload 1\"");
	manifest_end_line(&c);
	manifest_text(&c, "program ", "\"program NAME\"");
	manifest_name(&c, m->program);
	manifest_end_line(&c);
	manifest_text(&c, "architecture ", "\"architecture NAME\"");
	manifest_name(&c, m->architecture);
	manifest_end_line(&c);
	manifest_text(&c, "layer-size ", "\"layer-size BYTES\"");
	m->layer_size = manifest_number(&c, 1, MANIFEST_MAX_CHUNKS * MANIFEST_MAX_CHUNK_SIZE, "a layer size from 1 to 67108864");
	manifest_end_line(&c);
	manifest_text(&c, "layer-sha256 ", "\"layer-sha256 HEX\"");
	manifest_sha256(&c, m->layer_sha256);
	manifest_end_line(&c);
	manifest_text(&c, "program-offset ", "\"program-offset BYTES\"");
	m->program_offset = manifest_number(&c, 0, MANIFEST_MAX_PROGRAM_OFFSET, "a program offset from 0 to 65536");
	manifest_end_line(&c);
	manifest_text(&c, "program-size ", "\"program-size BYTES\"");
	m->program_size = manifest_number(&c, 1, MANIFEST_MAX_PROGRAM_SIZE, "a program size from 1 to 268435456");
	manifest_end_line(&c);
	manifest_text(&c, "program-sha256 ", "\"program-sha256 HEX\"");
	manifest_sha256(&c, m->program_sha256);
	manifest_end_line(&c);
	manifest_text(&c, "chunks ", "\"chunks COUNT\"");
	m->chunks = manifest_number(&c, 1, MANIFEST_MAX_CHUNKS, "a number of chunks from 1 to 64");
	manifest_end_line(&c);
	for (uint32_t i = 0; i < m->chunks && !c.error; i++) {
		char index[3] = {(char)('0' + i / 10), (char)('0' + i % 10), 0};
		manifest_text(&c, "chunk ", "\"chunk NN BYTES HEX\"");
		manifest_text(&c, index, "the chunks in order, each with two digits");
		manifest_text(&c, " ", "\"chunk NN BYTES HEX\"");
		m->chunk[i].size = manifest_number(&c, 1, MANIFEST_MAX_CHUNK_SIZE, "a chunk size from 1 to 1048576");
		manifest_text(&c, " ", "\"chunk NN BYTES HEX\"");
		manifest_sha256(&c, m->chunk[i].sha256);
		manifest_end_line(&c);
		sum += m->chunk[i].size;
	}
	if (!c.error && c.next != c.end)
		c.error = "the end, after the last chunk";
	if (!c.error && sum != m->layer_size)
		c.error = "chunks that add up to the layer size";
	*line = c.line;
	return c.error;
}
