//go:build ignore

/*
 * The loader's inflate, manifest parser and SHA-256 with a C library and sanitizers, for the fuzz tests. It serves
 * requests on stdin until EOF. Input and window are allocated with their exact size, so that the address sanitizer
 * detects any access beyond them.
 *
 *	request: kind ('i', 'm' or 's'), piece size (4 bytes), size (4 bytes), data. All numbers little-endian.
 *	response: 1 or 0 for accepted or rejected, size (4 bytes), data
 *
 * 'i' is a gzip stream, passed to the decoder in pieces of the piece size; the response is the inflated data, at most
 * 8 MiB. 'm' is a manifest; the response is the parsed manifest, encoded again. 's' is arbitrary data, also passed in
 * pieces; the response is its SHA-256. If the request is rejected, the data is the reason.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inflate.h"
#include "manifest.h"
#include "sha256.h"

enum { OUTPUT_LIMIT = 8 << 20 };

struct stream {
	const uint8_t *data;
	size_t size, at, piece_size;
	uint8_t *piece;
	size_t output_size;
};

static uint8_t output[OUTPUT_LIMIT];

static void *allocate(size_t size)
{
	void *data = malloc(size ? size : 1);
	if (!data)
		abort();
	return data;
}

static size_t stream_input(void *context, const uint8_t **data)
{
	struct stream *s = context;
	size_t size = s->size - s->at < s->piece_size ? s->size - s->at : s->piece_size;
	free(s->piece);
	s->piece = allocate(size);
	memcpy(s->piece, s->data + s->at, size);
	s->at += size;
	*data = s->piece;
	return size;
}

static int stream_output(void *context, const uint8_t *data, size_t size)
{
	struct stream *s = context;
	if (size > OUTPUT_LIMIT - s->output_size)
		return -1;
	memcpy(output + s->output_size, data, size);
	s->output_size += size;
	return 0;
}

static void answer(int accepted, const void *data, size_t size)
{
	uint8_t header[5] = {(uint8_t)accepted, (uint8_t)size, (uint8_t)(size >> 8), (uint8_t)(size >> 16), (uint8_t)(size >> 24)};
	if (fwrite(header, sizeof header, 1, stdout) != 1 || fwrite(data, 1, size, stdout) != size || fflush(stdout))
		exit(1);
}

static void answer_inflate(const uint8_t *data, size_t size, size_t piece_size)
{
	struct stream s = {.data = data, .size = size, .piece_size = piece_size ? piece_size : 1};
	struct gunzip *z = allocate(sizeof *z);
	memset(z, 0xa5, sizeof *z);
	z->input = stream_input;
	z->output = stream_output;
	z->context = &s;
	z->window = allocate(GUNZIP_WINDOW);
	const char *error = gunzip(z);
	if (error)
		answer(0, error, strlen(error));
	else
		answer(1, output, s.output_size);
	free(z->window);
	free(z);
	free(s.piece);
}

static void print_sha256(FILE *f, const uint8_t sum[32])
{
	for (int i = 0; i < 32; i++)
		fprintf(f, "%02x", sum[i]);
	fputc('\n', f);
}

static void answer_manifest(const uint8_t *data, size_t size)
{
	struct manifest *m = allocate(sizeof *m);
	memset(m, 0xa5, sizeof *m);
	unsigned line;
	const char *error = manifest_parse(m, data, size, &line);
	char *text = NULL;
	size_t text_size = 0;
	FILE *f = open_memstream(&text, &text_size);
	if (!f)
		abort();
	if (error) {
		fprintf(f, "line %u: expected %s", line, error);
	} else {
		fprintf(f, "zarf-registry payload 1\nprogram %s\narchitecture %s\nlayer-size %" PRIu32 "\nlayer-sha256 ", m->program, m->architecture, m->layer_size);
		print_sha256(f, m->layer_sha256);
		fprintf(f, "program-offset %" PRIu32 "\nprogram-size %" PRIu32 "\nprogram-sha256 ", m->program_offset, m->program_size);
		print_sha256(f, m->program_sha256);
		fprintf(f, "chunks %" PRIu32 "\n", m->chunks);
		for (uint32_t i = 0; i < m->chunks; i++) {
			fprintf(f, "chunk %02" PRIu32 " %" PRIu32 " ", i, m->chunk[i].size);
			print_sha256(f, m->chunk[i].sha256);
		}
	}
	fclose(f);
	answer(error == NULL, text, text_size);
	free(text);
	free(m);
}

static void answer_sha256(const uint8_t *data, size_t size, size_t piece_size)
{
	struct sha256 hash;
	uint8_t sum[32];
	sha256_init(&hash);
	for (size_t at = 0, n; at < size; at += n) {
		n = piece_size && piece_size < size - at ? piece_size : size - at;
		sha256_update(&hash, data + at, n);
	}
	sha256_final(&hash, sum);
	answer(1, sum, sizeof sum);
}

static uint32_t number(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int main(void)
{
	uint8_t request[9];
	while (fread(request, sizeof request, 1, stdin) == 1) {
		size_t size = number(request + 5);
		uint8_t *data = allocate(size);
		if (fread(data, 1, size, stdin) != size)
			return 1;
		switch (request[0]) {
		case 'i':
			answer_inflate(data, size, number(request + 1));
			break;
		case 'm':
			answer_manifest(data, size);
			break;
		case 's':
			answer_sha256(data, size, number(request + 1));
			break;
		default:
			return 1;
		}
		free(data);
	}
	return 0;
}
