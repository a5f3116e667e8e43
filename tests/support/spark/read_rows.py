"""Read a Delta table with Spark, in an environment that has pyspark and nothing of ours.

stdin: version or null, SQL condition, columns ──► spark.read.format("delta") ──► stdout: the rows, as one line of JSON

python read_rows.py JARS FOLDER
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(jars: str, folder: str) -> None:
    """Print the rows of each question."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")  # 50 otherwise, whatever the table's size
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    for line in sys.stdin:
        version, condition, columns = json.loads(line)
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        rows = reader.load(folder).where(condition).select(*columns).collect()
        print("rows", json.dumps([list(row) for row in rows], default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
