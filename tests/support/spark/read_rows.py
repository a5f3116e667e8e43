"""Read a Delta table with Spark, in an environment that has pyspark and nothing of ours.

folder, SQL condition, columns ──► spark.read.format("delta") ──► a line of JSON for each row, on stdout

python read_rows.py JARS FOLDER CONDITION COLUMN ...
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(jars: str, folder: str, condition: str, *columns: str) -> None:
    """Print the rows."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")  # 50 otherwise, whatever the table's size
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    for row in spark.read.format("delta").load(folder).where(condition).select(*columns).collect():
        print(json.dumps(list(row)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
